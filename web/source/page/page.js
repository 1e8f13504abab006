// The page of an exported model: it loads the model, and shows a translator or a text encoder.
import { load } from "../clearhead.js";
import { showEncoder } from "./encoder.js";
import { showTranslator } from "./translator.js";

const byId = (id) => document.getElementById(id);
let model = null;

/** Show a line with a button to try again. */
function showFailure(line) {
  byId("failure").querySelector("span").textContent = line;
  byId("failure").hidden = false;
}

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
  await (model.kind === "encoder" ? showEncoder(model) : showTranslator(model));
  document.documentElement.dataset.ready = "yes";
}

// The model stopped, for example because the browser has too little memory.
addEventListener("unhandledrejection", ({ reason }) => showFailure(`The model stopped: ${reason?.message ?? reason}.`));
byId("failure").querySelector("button").addEventListener("click", () => (model ? location.reload() : start()));
start();
