// The page of an exported model: it shows a translator or a text encoder.
import { showEncoder } from "./encoder.js";
import { openPage } from "./loading.js";
import { showTranslator } from "./translator.js";

openPage((model) => {
  document.getElementById("lesson-link").hidden = !model.lesson;
  return model.kind === "encoder" ? showEncoder(model) : showTranslator(model);
});
