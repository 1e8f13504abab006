// The files of a folder: from a server, or as scripts from the disk, where a page may not fetch.

import { gunzipSync } from "fflate";

const LOADED = new Map();

const failure = (url, reason) => new Error(`${url} could not be loaded${reason}`);
const damaged = (url) => failure(url, ": its content is not, or not all of, what was exported");

/** Return the bytes of a file; `onBytes` receives the number of bytes of each part that arrives. */
async function fetchFile(url, cache, onBytes) {
  const response = await fetch(url, { cache }).catch(() => null);
  if (!response?.ok) throw failure(url, response ? ` (HTTP ${response.status})` : "");
  const parts = [], reader = response.body.getReader(), read = () => reader.read().catch(() => { throw failure(url, ": the connection ended"); });
  for (let part = await read(); !part.done; part = await read()) {
    parts.push(part.value);
    onBytes(part.value.length);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

/** Return the bytes of a file whose script calls `clearheadFile` with its name and its content in base64. */
async function readScript(url, name) {
  globalThis.clearheadFile = (own, content) => LOADED.set(own, content);
  await new Promise((resolve, reject) => {
    const script = Object.assign(document.createElement("script"), { src: url, onload: resolve });
    script.onerror = () => reject(failure(url, ""));
    document.head.append(script);
  }).finally(() => document.head.querySelector(`script[src="${url}"]`)?.remove());
  const content = LOADED.get(name);
  LOADED.delete(name);
  if (content === undefined) throw damaged(url);
  return Uint8Array.from(atob(content), (one) => one.charCodeAt(0));
}

const isGzip = (bytes) => bytes[0] === 0x1f && bytes[1] === 0x8b; // some servers unpack .gz files themselves

async function unpack(bytes) {
  if (!isGzip(bytes)) return bytes;
  if (typeof DecompressionStream === "undefined") return gunzipSync(bytes);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const startsWith = (bytes, start) => start.every((byte, index) => bytes[index] === byte);

const IS_WHOLE = { // where the bytes themselves tell; weights.js compares the size of weights.bin
  json(bytes) {
    try {
      return JSON.parse(new TextDecoder().decode(bytes)) !== null;
    } catch {
      return false;
    }
  },
  wasm: (bytes) => startsWith(bytes, [0, 97, 115, 109]),
  onnx: (bytes) => startsWith(bytes, [8]), // the first field of a model is its version
  js: (bytes) => bytes[0] !== 60, // "<": a page with an error
  bin: () => true,
};

/** Return the unpacked content of a file, if it is what its name says. */
async function checked(bytes, url) {
  const content = await unpack(bytes).catch(() => null), kind = url.replace(/\.gz$/, "").split(".").pop();
  if (!content || !IS_WHOLE[kind](content)) throw damaged(url);
  return content;
}

/**
 * Return promises of the bytes of the given files, and of {name: bytes} of the model's files, in an exported folder.
 *
 * `onProgress` receives the number of bytes so far; `cache` is that of `fetch`.
 */
export function readFolder(folder, paths, { onProgress = () => {}, cache }) {
  const fromDisk = new URL(folder, document.baseURI).protocol === "file:";
  let total = 0;
  const onBytes = (bytes) => onProgress((total += bytes));
  const read = async (path) => {
    const name = path.split("/").pop();
    const bytes = fromDisk ? await readScript(`${folder}/disk/${name}.js`, name) : await fetchFile(`${folder}/${path}`, cache, onBytes);
    if (fromDisk) onBytes(bytes.length);
    return checked(bytes, `${folder}/${path}`);
  };
  const readModel = async () => {
    const names = ["model.json", "tokenizer.json", "weights.bin", "encoder.onnx"], first = Promise.all(names.map((name) => read(`model/${name}`)));
    const files = Object.fromEntries((await first).map((bytes, index) => [names[index], bytes]));
    const { kind } = JSON.parse(new TextDecoder().decode(files["model.json"]));
    return kind === "encoder" ? files : { ...files, "decoder.onnx": await read("model/decoder.onnx") };
  };
  return { own: Promise.all(paths.map(read)), model: readModel() };
}
