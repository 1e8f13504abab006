/**
 * A model that runs in the browser: translations with all attention weights, and vectors of texts.
 *
 *     import { load } from "./clearhead.js";
 *     const model = await load(".");
 *     const { text, tokens, attention, beams } = await model.translate("Good morning!", { numBeams: 5 });
 *
 * The model runs in a worker, with ONNX Runtime Web. Nothing is sent to a server.
 *
 * Options of `translate` and `forward`, and of `encode` where they apply:
 *
 * - headOff: heads to switch off, [{ part: "encoder" | "decoder" | "cross", layer, head }], counted from 0; their
 *   values are zeros.
 * - layerOff: layers to switch off, [{ part: "encoder" | "decoder", layer }], counted from 0; they return their input.
 * - maskedSource: indices of source tokens that no query may attend to; in `encode`, such a list for each text.
 * - temperature: divides the logits of the alternatives; 1 by default.
 * - signal: an AbortSignal; the call then rejects with an AbortError.
 */
import { readFolder } from "./files.js";

/* global WORKER_CODE */

// The smallest module with an instruction of WebAssembly SIMD: i8x16.splat.
const SIMD = Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11);

/** Return what this browser lacks to run a model fast; null if it lacks nothing. */
export function missingFeature() {
  if (!WebAssembly.validate(SIMD)) return "WebAssembly SIMD";
  try {
    new WebAssembly.Memory({ initial: 1, maximum: 1, shared: true }); // the runtime asks for it, with one thread too
  } catch {
    return "shared WebAssembly memory";
  }
  return null;
}

/**
 * Load a model from a folder of `clearhead export --to web`.
 *
 * `onProgress` receives the number of bytes so far; `cache` is that of `fetch`, such as "reload". Rejects if a file
 * cannot be loaded, and with a NotSupportedError if the browser has no WebAssembly or no web workers. Without WebAssembly
 * SIMD or shared memory, a slower runtime is loaded.
 */
export async function load(folder = ".", { onProgress, cache = "default" } = {}) {
  if (typeof WebAssembly === "undefined") throw new DOMException("this browser has no WebAssembly, or it is turned off", "NotSupportedError");
  if (typeof Worker === "undefined") throw new DOMException("this browser has no web workers, or they are turned off", "NotSupportedError");
  const isSlow = missingFeature() !== null;
  let remote = isSlow ? null : new Remote(WORKER_CODE); // it starts while the files arrive
  const files = readFolder(folder, isSlow ? ["runtime_scalar.wasm.gz", "worker_scalar.js.gz"] : ["runtime.wasm.gz"], { onProgress, cache });
  const start = async () => {
    const [runtime, code] = await files.own;
    remote ??= new Remote(code);
    await remote.call("start", [runtime], { transfer: [runtime.buffer] });
  };
  try {
    const [content] = await Promise.all([files.model, start()]); // the runtime starts while the weights arrive
    const transfer = Object.values(content).map(({ buffer }) => buffer);
    return new Model(remote, await remote.call("load", [content], { transfer }));
  } catch (error) {
    remote?.close();
    throw error;
  }
}

function openWorker(address) {
  try {
    return new Worker(address);
  } catch {
    throw new DOMException("this browser refuses to start a web worker", "NotSupportedError");
  }
}

/** An error in the worker, such as too little memory. */
class ModelError extends Error {
  name = "ModelError";
}

/** Calls of functions in a worker. */
class Remote {
  constructor(code) {
    const address = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
    const worker = (this.worker = openWorker(address));
    URL.revokeObjectURL(address);
    this.waiting = new Map();
    this.count = 0;
    this.failure = null;
    worker.onmessage = ({ data: { id, result, error } }) => {
      const { resolve, reject } = this.waiting.get(id);
      this.waiting.delete(id);
      if (error) reject(error.name === "AbortError" ? new DOMException(error.message, error.name) : new ModelError(error.message));
      else resolve(result);
    };
    worker.onerror = (event) => {
      event.preventDefault(); // the page shows it
      this.failure = new ModelError("its web worker stopped");
      for (const { reject } of this.waiting.values()) reject(this.failure);
      this.waiting.clear();
    };
  }

  call(method, parameters, { signal, transfer = [] } = {}) {
    if (this.failure) return Promise.reject(this.failure);
    const id = ++this.count;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      this.worker.postMessage({ id, method, parameters }, transfer);
      const cancel = () => this.worker.postMessage({ cancel: id });
      if (signal?.aborted) cancel();
      else signal?.addEventListener("abort", cancel, { once: true });
    });
  }

  close() {
    this.worker.terminate();
  }
}

/**
 * A loaded model.
 *
 * `kind` is "translator" or "encoder", `name` its name, `sizes` its numbers of layers and heads. `lesson` describes it
 * for the lesson, if it has one.
 */
class Model {
  constructor(remote, { kind, name, repository, sizes, generation, lesson }) {
    this.remote = remote;
    Object.assign(this, { kind, name, repository, sizes, generation, lesson });
  }

  /**
   * Translate a text by greedy or beam search.
   *
   * Options: numBeams (1 is greedy; the model's default), prefix (token ids that the output begins with), and those of
   * the module. Resolves to:
   *
   * - source: { ids, tokens, truncated }
   * - text, ids, tokens, logProbs, score, complete: the best output; `logProbs` is without the prefix, `score` with it.
   * - attention: { encoder (N, H, M, M), self (N, H, L, L), cross (N, H, L, M) }, each { data, shape }. Row i is the
   *   query that produces token i of the output.
   * - probabilities: that of each token of the output.
   * - alternatives: for each token of the output the most probable tokens, [{ id, token, probability }].
   * - hypotheses: all outputs of the search, best first.
   * - beams: for each step the candidates, best first, [{ id, token, parent, logProb, score, ended, kept }]. `kept` is
   *   the index of a candidate that goes on, `parent` that of the candidate before it.
   */
  translate(text, { signal, ...options } = {}) {
    return this.remote.call("translate", [text, options], { signal });
  }

  /**
   * Run the decoder on the token ids of an output that is given by hand.
   *
   * Resolves to { source, target, text, alternatives, attention, encoder }: the most probable next tokens, the
   * attention of all tokens so far, and the encoder's queries, keys, values (N, H, M, K) and hidden states (N + 1, M, D).
   */
  forward(text, ids, { signal, ...options } = {}) {
    return this.remote.call("forward", [text, ids, options], { signal });
  }

  /**
   * Return what the encoder of an encoder–decoder computes from a text, for the lesson.
   *
   * Resolves to { source, words, encoder, first }: the words with their tokens after each merge, the encoder as in
   * `forward`, and results inside its first layer, (M, D) each: embedded, attended, normed, inner (M, F), transformed.
   */
  inspect(text, { signal } = {}) {
    return this.remote.call("inspect", [text], { signal });
  }

  /**
   * Encode texts with a text encoder.
   *
   * Resolves to { texts, cosines }: for each text { ids, tokens, truncated, vector, encoder }, and the cosines of all
   * pairs.
   */
  encode(texts, { signal, ...options } = {}) {
    return this.remote.call("encode", [texts, options], { signal });
  }

  /** Stop the worker. */
  close() {
    this.remote.close();
  }
}
