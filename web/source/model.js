// A model in ONNX Runtime Web: texts in, tokens and attention out. Runs in a worker, or in Node.js for the tests.
import { logSoftmax, topIndices, zeros } from "./arrays.js";
import { search } from "./search/search.js";
import { Tokenizer } from "./tokenizer/tokenizer.js";
import { expandWeights } from "./weights.js";

const MAX_CHARACTERS = 5000; // of a text; what follows is cut
const ALTERNATIVES = 10; // most probable tokens of each step that a result lists

const json = (bytes) => JSON.parse(new TextDecoder().decode(bytes));

/**
 * Open a model.
 *
 * `ort` is ONNX Runtime Web; `files` maps the names of the folder "model" to their contents.
 */
export async function openModel(ort, files) {
  const description = json(files["model.json"]);
  if (!description.weights || !description.sizes) throw new Error("model/model.json is damaged");
  const weights = expandWeights(files["weights.bin"], description.weights);
  const open = async (name) => {
    try {
      return await ort.InferenceSession.create(files[name], { executionProviders: ["wasm"], externalData: [{ path: "weights", data: weights }] });
    } catch {
      throw new Error(`model/${name} could not be loaded: it is damaged, or the browser has too little memory`);
    }
  };
  const encoder = await open("encoder.onnx");
  const tokenizer = new Tokenizer(json(files["tokenizer.json"]));
  if (description.lesson) description.lesson.merges = Boolean(tokenizer.model.steps);
  if (description.kind === "encoder") return new SentenceEncoder(ort, description, tokenizer, encoder);
  return new Translator(ort, description, tokenizer, encoder, await open("decoder.onnx"));
}

/** The parts that encoders and translators share: the tokenizer, the encoder's graph and the switches. */
class Model {
  constructor(ort, description, tokenizer, encoder) {
    Object.assign(this, { ort, description, tokenizer, encoder });
  }

  floats(data, shape) {
    return new this.ort.Tensor("float32", data, shape);
  }

  integers(ids, shape) {
    return new this.ort.Tensor("int64", BigInt64Array.from(ids, BigInt), shape);
  }

  /** Return the token ids of a text, and whether it was cut. */
  tokenize(text) {
    const cut = Array.from(text.slice(0, 2 * MAX_CHARACTERS)).slice(0, MAX_CHARACTERS).join("");
    const { ids, tokens, truncated } = this.tokenizer.encode(this.description.prompt + cut, this.description.max_length);
    return { ids, tokens, truncated: truncated || cut.length < text.length };
  }

  /** Return 1 for each head of a part, and 0 for those that are off. */
  headSwitches(part, { headOff = [] }) {
    const { layers, heads } = this.description.sizes[part === "cross" ? "decoder" : part];
    const data = new Float32Array(layers * heads).fill(1);
    for (const off of headOff) if (off.part === part) data[off.layer * heads + off.head] = 0;
    return this.floats(data, [layers, heads]);
  }

  layerSwitches(part, { layerOff = [] }) {
    const data = new Float32Array(this.description.sizes[part].layers).fill(1);
    for (const off of layerOff) if (off.part === part) data[off.layer] = 0;
    return this.floats(data, [data.length]);
  }

  /** Return 1 for each source token, and 0 for those that are masked. */
  keepSwitches(length, { maskedSource = [] }) {
    const data = new Float32Array(length).fill(1);
    for (const index of maskedSource) data[index] = 0;
    return this.floats(data, [1, length]);
  }

  async runEncoder(ids, options) {
    return this.encoder.run({
      ids: this.integers(ids, [1, ids.length]),
      keep: this.keepSwitches(ids.length, options),
      heads: this.headSwitches("encoder", options),
      layers: this.layerSwitches("encoder", options),
    });
  }
}

const array = ({ data, dims }) => ({ data: Float32Array.from(data), shape: [...dims] });

/** Return the parts of the encoder's outputs that a page shows. */
const details = ({ attention, queries, keys, values, hidden }) => ({
  attention: array(attention), queries: array(queries), keys: array(keys), values: array(values), hidden: array(hidden),
});

/** A text encoder: one vector for each text. */
class SentenceEncoder extends Model {
  /** Return the vector of each text, the cosines of all pairs, and the tokens and attention of each text; `onStep` is awaited before each. */
  async encode(texts, options = {}, onStep = () => {}) {
    const results = [];
    for (const [index, text] of texts.entries()) {
      await onStep();
      const { ids, tokens, truncated } = this.tokenize(text), maskedSource = options.maskedSource?.[index];
      const outputs = await this.runEncoder(ids, { ...options, maskedSource });
      results.push({ text, ids, tokens, truncated, vector: Float32Array.from(outputs.vector.data), encoder: details(outputs) });
    }
    const cosines = results.map((one) => results.map((other) => cosine(one.vector, other.vector)));
    return { texts: results, cosines };
  }
}

function cosine(one, other) {
  let product = 0, square = 0, otherSquare = 0;
  for (let index = 0; index < one.length; index++) {
    product += one[index] * other[index];
    square += one[index] ** 2;
    otherSquare += other[index] ** 2;
  }
  return product / (Math.sqrt(square * otherSquare) || 1);
}

/** One decoding: the targets of a sentence, with the cache and the attention of every step. */
class DecodingRun {
  /** `given` are the token ids that the output begins with, after the start of every target. */
  constructor(model, encoded, given, options, onStep) {
    const prefix = [...model.description.generation.prefix, ...given];
    Object.assign(this, { model, encoded, prefix, given: given.length, options, onStep, source: encoded.ids, steps: [] });
    const { memory_keys: keys } = encoded.outputs, [layers, heads, , width] = keys.dims;
    const empty = model.floats(new Float32Array(0), [layers, 1, heads, 0, width]);
    this.past = { keys: empty, values: empty };
    this.switches = {
      keep: model.keepSwitches(this.source.length, options),
      self_heads: model.headSwitches("decoder", options),
      cross_heads: model.headSwitches("cross", options),
      layers: model.layerSwitches("decoder", options),
    };
  }

  async step(tokens, rows) {
    await this.onStep();
    const { memory_keys, memory_values } = this.encoded.outputs;
    const outputs = await this.model.decoder.run({
      ids: this.model.integers(tokens, [tokens.length, 1]),
      rows: this.model.integers(rows, [rows.length]),
      past_keys: this.past.keys, past_values: this.past.values, memory_keys, memory_values, ...this.switches,
    });
    this.past = { keys: outputs.keys, values: outputs.values };
    this.steps.push(outputs);
    const size = outputs.logits.dims[1];
    return rows.map((_, row) => outputs.logits.data.subarray(row * size, (row + 1) * size));
  }

  /**
   * Return the attention of a target: `self` (N, H, L, L) and `cross` (N, H, L, M).
   *
   * `rows` is the row of the target in each step. Row i of a map is the query that produces token i.
   */
  attention(rows) {
    const cross = (outputs) => outputs.cross_attention, own = (outputs) => outputs.self_attention;
    return { self: this.gather(own, rows, rows.length), cross: this.gather(cross, rows, this.source.length) };
  }

  gather(pick, rows, width) {
    const [layers, , heads] = pick(this.steps[0]).dims, result = zeros([layers, heads, rows.length, width]);
    rows.forEach((row, step) => {
      const { data, dims } = pick(this.steps[step]), [, targets, , keys] = dims;
      for (let layer = 0; layer < layers; layer++) {
        for (let head = 0; head < heads; head++) {
          const from = ((layer * targets + row) * heads + head) * keys;
          result.data.set(data.subarray(from, from + keys), ((layer * heads + head) * rows.length + step) * width);
        }
      }
    });
    return result;
  }

  logProbs(step, row, temperature) {
    const { data, dims } = this.steps[step].logits, size = dims[1];
    return logSoftmax(data.subarray(row * size, (row + 1) * size), temperature);
  }

  /** Return the most probable tokens of a target's row at a step. */
  alternatives(step, row, temperature = 1) {
    const logProbs = this.logProbs(step, row, temperature), { tokenizer } = this.model;
    return topIndices(logProbs, ALTERNATIVES).map((id) => ({ id, token: tokenizer.toTokens([id])[0], probability: Math.exp(logProbs[id]) }));
  }
}

/** An encoder–decoder. */
class Translator extends Model {
  constructor(ort, description, tokenizer, encoder, decoder) {
    super(ort, description, tokenizer, encoder);
    this.decoder = decoder;
    this.encoded = { key: null };
  }

  async encodeSource(text, options) {
    const { headOff, layerOff, maskedSource } = options, key = JSON.stringify([text, headOff, layerOff, maskedSource]);
    if (this.encoded.key !== key) {
      const { ids, tokens, truncated } = this.tokenize(text);
      this.encoded = { key, ids, tokens, truncated, outputs: await this.runEncoder(ids, options) };
    }
    return this.encoded;
  }

  /** Return the words of a text with their tokens, and what the encoder computes from them: see clearhead.js. */
  async inspect(text) {
    const encoded = await this.encodeSource(text, {}), { outputs } = encoded;
    const first = ["embedded", "attended", "normed", "inner", "transformed"].filter((name) => name in outputs);
    return {
      source: sourceOf(encoded),
      words: this.tokenizer.wordSteps(this.description.prompt + text),
      encoder: details(outputs),
      first: Object.fromEntries(first.map((name) => [name, array(outputs[name])])),
    };
  }

  /** Return a run of a text whose target begins with the given token ids. */
  async run(text, ids, options, onStep) {
    return new DecodingRun(this, await this.encodeSource(text, options), ids, options, onStep);
  }

  /**
   * Translate a text.
   *
   * Options: numBeams; prefix (token ids that the output begins with); headOff, layerOff, maskedSource; temperature of
   * the alternatives. `onStep` is awaited before each step.
   */
  async translate(text, options = {}, onStep = () => {}) {
    const { prefix = [], numBeams, temperature } = options, config = { ...this.description.generation };
    if (numBeams) config.beam_size = numBeams;
    const run = await this.run(text, prefix, options, onStep), source = sourceOf(run.encoded);
    if (!text.trim()) return { source, text: "", ids: [], tokens: [], logProbs: [], score: 0, probabilities: [], alternatives: [], hypotheses: [], beams: [] };
    const { hypotheses, steps } = await search(run, config), [best] = hypotheses;
    const describe = (one) => {
      const ids = [...prefix, ...one.ids];
      return { ids, tokens: this.tokenizer.toTokens(ids), text: this.tokenizer.decode(ids), logProbs: one.logProbs, score: one.score };
    };
    const output = describe(best), given = run.prefix.length - 1, rows = [...Array(given).fill(0), ...best.rows];
    const first = rows.length - output.ids.length, stepOf = (index) => [first + index, rows[first + index]];
    return {
      source,
      ...output,
      complete: config.eos_ids.includes(output.ids.at(-1)),
      probabilities: output.ids.map((id, index) => Math.exp(run.logProbs(...stepOf(index))[id])),
      attention: { encoder: details(run.encoded.outputs).attention, ...run.attention(rows) },
      alternatives: output.ids.map((_, index) => run.alternatives(...stepOf(index), temperature)),
      hypotheses: hypotheses.map(describe),
      beams: steps.map((candidates) => candidates.map((one) => ({ ...one, token: this.tokenizer.toTokens([one.id])[0] }))),
    };
  }

  /** Return what may follow the given token ids: the alternatives, and the attention of all steps so far. */
  async forward(text, ids, options = {}, onStep = () => {}) {
    const run = await this.run(text, ids, options, onStep);
    for (const id of run.prefix) await run.step([id], [0]);
    const rows = run.prefix.map(() => 0);
    return {
      source: sourceOf(run.encoded),
      target: { ids: run.prefix, tokens: this.tokenizer.toTokens(run.prefix) },
      text: this.tokenizer.decode(ids),
      alternatives: run.alternatives(rows.length - 1, 0, options.temperature),
      attention: { encoder: details(run.encoded.outputs).attention, ...run.attention(rows) },
      encoder: details(run.encoded.outputs),
    };
  }
}

const sourceOf = ({ ids, tokens, truncated }) => ({ ids, tokens, truncated });
