// The worker for browsers with WebAssembly SIMD and shared memory.
import * as ort from "onnxruntime-web/wasm";
import { answerCalls } from "./calls.js";

/* global RUNTIME_LOADER */

answerCalls(ort, (wasm) => {
  const mjs = URL.createObjectURL(new Blob([RUNTIME_LOADER], { type: "text/javascript" }));
  ort.env.wasm.wasmPaths = { mjs, wasm };
});
