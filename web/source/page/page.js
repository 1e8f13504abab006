// The page of an exported model: it loads the model, and shows a translator or a text encoder.
import { load } from "../clearhead.js";
import { showEncoder } from "./encoder.js";
import { showTranslator } from "./translator.js";

const byId = (id) => document.getElementById(id);

async function start() {
  const status = byId("loading"), failure = byId("failure");
  failure.hidden = true;
  status.hidden = false;
  try {
    const onProgress = (bytes) => { status.textContent = `Loading the model … ${(bytes / 1e6).toFixed(1)} MB`; };
    const model = await load(".", { onProgress });
    byId("name").textContent = model.name;
    await (model.kind === "encoder" ? showEncoder(model) : showTranslator(model));
    document.documentElement.dataset.ready = "yes";
  } catch (error) {
    failure.querySelector("span").textContent = `The model was not loaded: ${error.message}.`;
    failure.hidden = false;
  } finally {
    status.hidden = true;
  }
}

byId("failure").querySelector("button").addEventListener("click", start);
start();
