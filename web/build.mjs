// Bundle the page's scripts with esbuild into the package: page.js for index.html, lesson.js for lesson.html, clearhead.js
// for other pages.
import { build } from "esbuild";
import { copyFile, mkdir, readFile, writeFile } from "node:fs/promises";
import { promisify } from "node:util";
import { gzip } from "node:zlib";

const OUT = new URL("../src/clearhead/export/web/static/", import.meta.url);
const RUNTIME = new URL("node_modules/onnxruntime-web/", import.meta.url);
// drawings that the page of `clearhead view` shares; it works without a build
const DRAWING = new URL("../src/clearhead/inspection/report/assets/drawing", import.meta.url).pathname;
const common = { alias: { "@drawing": DRAWING }, bundle: true, minify: true, write: false, target: "es2022", logLevel: "error", legalComments: "none", charset: "utf8" };

const bundle = async (options) => (await build({ ...common, ...options })).outputFiles[0].text;

await mkdir(OUT, { recursive: true });
// A page that is opened from the disk may only start workers and import modules from strings.
const loader = JSON.stringify(await readFile(new URL("dist/ort-wasm-simd-threaded.mjs", RUNTIME), "utf8"));
const worker = await bundle({ entryPoints: ["source/worker.js"], format: "iife", define: { RUNTIME_LOADER: loader }, logOverride: { "empty-import-meta": "silent" } });
const define = { WORKER_CODE: JSON.stringify(worker) };
await writeFile(new URL("page.js", OUT), await bundle({ entryPoints: ["source/page/page.js"], format: "iife", define }));
await writeFile(new URL("lesson.js", OUT), await bundle({ entryPoints: ["source/lesson/lesson.js"], format: "iife", define }));
await writeFile(new URL("clearhead.js", OUT), await bundle({ entryPoints: ["source/clearhead.js"], format: "esm", define }));
for (const path of ["page/index.html", "page/page.css", "lesson/lesson.html", "lesson/lesson.css"]) await copyFile(`source/${path}`, new URL(path.split("/").pop(), OUT));
const wasm = await readFile(new URL("dist/ort-wasm-simd-threaded.wasm", RUNTIME));
await writeFile(new URL("runtime.wasm.gz", OUT), await promisify(gzip)(wasm, { level: 9 }));
const { version, license } = JSON.parse(await readFile(new URL("package.json", RUNTIME), "utf8"));
await writeFile(new URL("licenses.txt", OUT), `page.js, lesson.js, clearhead.js and runtime.wasm.gz contain ONNX Runtime Web ${version}.
Copyright (c) Microsoft Corporation. License: ${license}, https://github.com/microsoft/onnxruntime/blob/main/LICENSE
`);
