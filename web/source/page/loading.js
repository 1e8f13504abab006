// Load the model of a page, with its progress, and one line and a button where it fails.
import { load } from "../clearhead.js";

const byId = (id) => document.getElementById(id);

/** Show a line with a button to try again. */
function showFailure(line) {
  byId("failure").querySelector("span").textContent = line;
  byId("failure").hidden = false;
}

/** Load the model of this folder and call `show(model)`; the page is ready when its promise resolves. */
export function openPage(show) {
  let model = null;

  async function start() {
    const loading = byId("loading");
    byId("failure").hidden = true;
    loading.hidden = false;
    try {
      const onProgress = (bytes) => { loading.textContent = `Loading the model … ${(bytes / 1e6).toFixed(1)} MB`; };
      model = await load(".", { onProgress });
    } catch (error) {
      showFailure(`The model was not loaded: ${error.message}.`);
      return;
    } finally {
      loading.hidden = true;
    }
    byId("name").textContent = model.name;
    await show(model);
    document.documentElement.dataset.ready = "yes";
  }

  // The model stopped, for example because the browser has too little memory.
  addEventListener("unhandledrejection", ({ reason }) => showFailure(`The model stopped: ${reason?.message ?? reason}.`));
  byId("failure").querySelector("button").addEventListener("click", () => (model ? location.reload() : start()));
  start();
}
