// Bundle the page's scripts with esbuild into the package: page.js for index.html, lesson.js for lesson.html, clearhead.js
// for other pages.
import { build } from "esbuild";
import { readFileSync } from "node:fs";
import { copyFile, mkdir, readFile, writeFile } from "node:fs/promises";
import { promisify } from "node:util";
import { gzip } from "node:zlib";

const OUT = new URL("../src/clearhead/export/web/static/", import.meta.url);
const PACKAGES = new URL("node_modules/", import.meta.url);
const RUNTIME = new URL("onnxruntime-web/", PACKAGES), SCALAR_RUNTIME = new URL("onnxruntime-web-scalar/", PACKAGES);
// drawings that the page of `clearhead view` shares; it works without a build
const DRAWING = new URL("../src/clearhead/inspection/report/assets/drawing", import.meta.url).pathname;
const common = { alias: { "@drawing": DRAWING }, bundle: true, minify: true, write: false, target: ["es2022", "safari15.4"], logLevel: "error", legalComments: "none", charset: "utf8" };

const bundle = async (options) => (await build({ ...common, ...options })).outputFiles[0].text;
const write = async (name, content) => writeFile(new URL(name, OUT), content);
const compress = async (content) => promisify(gzip)(content, { level: 9 });

await mkdir(OUT, { recursive: true });
// A page that is opened from the disk may only start workers and import modules from strings.
const loader = JSON.stringify(await readFile(new URL("dist/ort-wasm-simd-threaded.mjs", RUNTIME), "utf8"));
const quiet = { format: "iife", logOverride: { "empty-import-meta": "silent" } };
const worker = await bundle({ entryPoints: ["source/worker/worker.js"], define: { RUNTIME_LOADER: loader }, ...quiet });
const define = { WORKER_CODE: JSON.stringify(worker) };
await write("page.js", await bundle({ entryPoints: ["source/page/page.js"], format: "iife", define }));
await write("lesson.js", await bundle({ entryPoints: ["source/lesson/lesson.js"], format: "iife", define }));
await write("clearhead.js", await bundle({ entryPoints: ["source/clearhead.js"], format: "esm", define }));
await write("runtime.wasm.gz", await compress(await readFile(new URL("dist/ort-wasm-simd-threaded.wasm", RUNTIME))));
// only browsers without SIMD or shared memory load these
await write("worker_scalar.js.gz", await compress(await bundle({ entryPoints: ["source/worker/worker_scalar.js"], ...quiet })));
await write("runtime_scalar.wasm.gz", await compress(await readFile(new URL("dist/ort-wasm.wasm", SCALAR_RUNTIME))));

/** Return the place of a function or class: its file with an anchor of its line. */
function placeOf(file, name) {
  const lines = readFileSync(new URL(`../${file}`, import.meta.url), "utf8").split("\n");
  const index = lines.findIndex((line) => new RegExp(`^\\s*(def|class) ${name}\\b`).test(line));
  if (index < 0) throw new Error(`lesson.html names ${name}, which ${file} does not define`);
  return `${file}#L${index + 1}`;
}

/** Return the lines with the code of a chapter, in which each name of a function has its place. */
function withPlaces(line) {
  let file = null;
  return line.replace(/<code (data-file="([^"]+)"|class="function"[^>]*)>(\w+)?/g, (tag, attributes, path, name) => {
    if (path) file = path;
    return `<code ${attributes} data-code="${path ?? placeOf(file, name)}">${name ?? ""}`;
  });
}

const loading = await readFile("source/page/loading.html", "utf8");
for (const path of ["page/index.html", "lesson/lesson.html"]) {
  const page = (await readFile(`source/${path}`, "utf8")).replace("  <!-- loading.html -->\n", loading);
  await write(path.split("/").pop(), page.replace(/<p class="code">.*<\/p>/g, withPlaces));
}
for (const path of ["page/page.css", "lesson/lesson.css"]) await copyFile(`source/${path}`, new URL(path.split("/").pop(), OUT));

const versionOf = async (folder) => JSON.parse(await readFile(new URL("package.json", folder), "utf8")).version;
await write("licenses.txt", `page.js, lesson.js, clearhead.js and runtime.wasm.gz contain ONNX Runtime Web ${await versionOf(RUNTIME)};
worker_scalar.js.gz and runtime_scalar.wasm.gz contain ONNX Runtime Web ${await versionOf(SCALAR_RUNTIME)}.
Copyright (c) Microsoft Corporation. License: MIT, https://github.com/microsoft/onnxruntime/blob/main/LICENSE

page.js, lesson.js and clearhead.js contain fflate ${await versionOf(new URL("fflate/", PACKAGES))}.
Copyright (c) Arjun Barrett. License: MIT, https://github.com/101arrowz/fflate/blob/master/LICENSE
`);
