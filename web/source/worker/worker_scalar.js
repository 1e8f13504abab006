// The worker for browsers without WebAssembly SIMD or shared memory: the last runtime that needs neither.
import * as ort from "onnxruntime-web-scalar/wasm-core";
import { answerCalls } from "./calls.js";
import { embedWeights } from "./embed_weights.js";

// This version reads weights only from the graph.
const InferenceSession = {
  create(graph, { externalData: [weights] = [], ...options }) {
    return ort.InferenceSession.create(weights ? embedWeights(graph, weights.data) : graph, options);
  },
};

answerCalls({ env: ort.env, Tensor: ort.Tensor, InferenceSession }, (wasm) => {
  Object.assign(ort.env.wasm, { simd: false, wasmPaths: { "ort-wasm.wasm": wasm } });
});
