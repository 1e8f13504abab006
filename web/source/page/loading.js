// Load the model of a page, with its progress, and one line and a button where it fails.
import { load, missingFeature } from "../clearhead.js";

const byId = (id) => document.getElementById(id);

/** Show a line, with a button to try again if that can help. */
function showFailure(line, canRetry = true) {
  byId("failure").querySelector("span").textContent = canRetry ? `${line} Reload the page, or try again.` : line;
  byId("failure").querySelector("button").hidden = !canRetry;
  byId("failure").hidden = false;
}

/** Load the model of this folder and call `show(model)`; the page is ready when its promise resolves. */
export function openPage(show) {
  let model = null, cache = "default";

  async function start() {
    const loading = byId("loading");
    byId("failure").hidden = true;
    loading.hidden = false;
    try {
      const onProgress = (bytes) => { loading.textContent = `Loading the model … ${(bytes / 1e6).toFixed(1)} MB`; };
      model = await load(".", { onProgress, cache });
    } catch (error) {
      cache = "reload"; // a stored copy may be the damaged one
      showFailure(`The model was not loaded: ${error.message}.`, error.name !== "NotSupportedError");
      return;
    } finally {
      loading.hidden = true;
    }
    const missing = missingFeature();
    byId("slow").textContent = missing ? `This browser has no ${missing}, so the model runs more slowly.` : "";
    byId("slow").hidden = !missing;
    byId("name").textContent = model.name;
    await show(model);
    document.documentElement.dataset.ready = "yes";
  }

  // The model stopped, for example because the browser has too little memory; or the page has a mistake.
  addEventListener("unhandledrejection", (event) => {
    event.preventDefault();
    console.warn(event.reason);
    showFailure(event.reason?.name === "ModelError" ? "The model stopped; the browser may have too little memory." : `The page failed: ${event.reason?.message ?? event.reason}.`);
  });
  byId("failure").querySelector("button").addEventListener("click", () => (model ? location.reload() : start()));
  start();
}
