// The calls of a worker: it opens the model and answers, so that the page stays responsive.
import { openModel } from "../model.js";

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

/**
 * Answer the calls of the page.
 *
 * `ort` is ONNX Runtime Web, `configure(wasm)` prepares it to load the runtime from an address.
 */
export function answerCalls(ort, configure) {
  let model = null, queue = Promise.resolve(); // a session runs one call at a time
  const cancelled = new Set();

  async function start(runtime) {
    configure(URL.createObjectURL(new Blob([runtime], { type: "application/wasm" })));
    // one thread needs no headers from the server, and is fast enough for a sentence
    Object.assign(ort.env.wasm, { numThreads: 1, proxy: false });
    await ort.InferenceSession.create(SMALLEST, { executionProviders: ["wasm"] }).catch(() => {
      throw new Error("the runtime could not be started: its file is damaged, or the browser has too little memory");
    });
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
    return model[method](...parameters, onStep);
  }

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
}
