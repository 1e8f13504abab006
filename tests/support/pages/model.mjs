// Call a model: reads {folder, calls: [[generation, method, ...parameters], ...]}, and writes the results.
// `generation` are changed options of model.json.
import { readFileSync, readdirSync } from "node:fs";
import ort from "../../../web/node_modules/onnxruntime-web/dist/ort.node.min.js";
import { openModel } from "../../../web/source/model.js";

const { folder, calls } = JSON.parse(readFileSync(0, "utf8"));
const files = Object.fromEntries(readdirSync(`${folder}/model`).map((name) => [name, new Uint8Array(readFileSync(`${folder}/model/${name}`))]));
ort.env.wasm.numThreads = 1;
const model = await openModel(ort, files);
const own = model.description.generation;
const results = [];
for (const [generation, method, ...parameters] of calls) {
  model.description.generation = { ...own, ...generation };
  results.push(await model[method](...parameters));
}
const plain = (_, value) => (value instanceof Float32Array ? Array.from(value) : value);
process.stdout.write(JSON.stringify(results, plain));
