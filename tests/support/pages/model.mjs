// Call a model: reads {folder, calls: [[method, ...parameters], ...], generation}, and writes the results.
import { readFileSync, readdirSync } from "node:fs";
import ort from "../../../web/node_modules/onnxruntime-web/dist/ort.node.min.js";
import { openModel } from "../../../web/source/model.js";

const { folder, calls, generation } = JSON.parse(readFileSync(0, "utf8"));
const files = Object.fromEntries(readdirSync(`${folder}/model`).map((name) => [name, new Uint8Array(readFileSync(`${folder}/model/${name}`))]));
ort.env.wasm.numThreads = 1;
const model = await openModel(ort, files);
Object.assign(model.description.generation ?? {}, generation);
const results = [];
for (const [method, ...parameters] of calls) results.push(await model[method](...parameters));
const plain = (_, value) => (value instanceof Float32Array ? Array.from(value) : value);
process.stdout.write(JSON.stringify(results, plain));
