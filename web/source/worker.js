// The worker: it opens the model and answers calls, so that the page stays responsive.
import * as ort from "onnxruntime-web/wasm";
import { openModel } from "./model.js";

/* global RUNTIME_LOADER */

let model = null;
const cancelled = new Set();

/** Let the worker receive messages, such as a cancellation, between two steps. */
function breathe() {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => { port1.close(); resolve(); };
    port2.postMessage(null);
  });
}

// A graph with one Identity: a session of it starts the runtime while the weights are still on their way.
const SMALLEST = Uint8Array.of(8, 8, 58, 55, 10, 16, 10, 1, 97, 18, 1, 98, 34, 8, 73, 100, 101, 110, 116, 105, 116, 121, 18, 1, 103, 90, 15, 10, 1, 97, 18, 10, 10, 8, 8, 1, 18, 4, 10, 2, 8, 1, 98, 15, 10, 1, 98, 18, 10, 10, 8, 8, 1, 18, 4, 10, 2, 8, 1, 66, 4, 10, 0, 16, 18);

async function start(runtime) {
  // one thread needs no headers from the server, and is fast enough for a sentence
  const mjs = URL.createObjectURL(new Blob([RUNTIME_LOADER], { type: "text/javascript" }));
  const wasm = URL.createObjectURL(new Blob([runtime], { type: "application/wasm" }));
  Object.assign(ort.env.wasm, { wasmPaths: { mjs, wasm }, numThreads: 1, proxy: false });
  await ort.InferenceSession.create(SMALLEST, { executionProviders: ["wasm"] });
}

async function load(files) {
  model = await openModel(ort, files);
  return model.description;
}

async function call(id, method, parameters) {
  if (method === "start") return start(...parameters);
  if (method === "load") return load(...parameters);
  const onStep = async () => {
    await breathe();
    if (cancelled.has(id)) throw new DOMException("The call was cancelled.", "AbortError");
  };
  return model[method](...parameters, ...(method === "encode" ? [] : [onStep]));
}

let queue = Promise.resolve(); // a session runs one call at a time

self.onmessage = ({ data: { id, method, parameters, cancel } }) => {
  if (cancel) {
    cancelled.add(cancel);
    return;
  }
  queue = queue.then(async () => {
    try {
      if (cancelled.has(id)) throw new DOMException("The call was cancelled.", "AbortError");
      self.postMessage({ id, result: await call(id, method, parameters) });
    } catch (error) {
      self.postMessage({ id, error: { name: error.name, message: String(error.message ?? error) } });
    }
    cancelled.delete(id);
  });
};
