// What a visitor changed by hand: heads and layers that are off, masked source tokens, and the beginning of the output.

export const PARTS = { cross: "cross-attention", decoder: "decoder self-attention", encoder: "encoder self-attention" };

const stackOf = (part) => (part === "encoder" ? "encoder" : "decoder");

/** Changes by hand. `options` are those of `translate` and `forward`, and `list` describes them. */
export class Edits {
  constructor() {
    this.reset();
  }

  reset() {
    Object.assign(this, { heads: new Map(), layers: new Map(), masked: new Map(), prefix: [], temperature: 1 });
  }

  /** Forget what belongs to one text: its masked tokens and the beginning of its output. */
  forgetText() {
    this.masked.clear();
    this.prefix = [];
  }

  get changesModel() {
    return this.heads.size + this.layers.size + this.masked.size + this.prefix.length > 0;
  }

  toggleHead(part, layer, head) {
    toggle(this.heads, `${part} ${layer} ${head}`, { part, layer, head });
  }

  /** Switch a layer; that of cross-attention is the decoder's. */
  toggleLayer(part, layer) {
    toggle(this.layers, `${stackOf(part)} ${layer}`, { part: stackOf(part), layer });
  }

  toggleSource(index, token) {
    toggle(this.masked, index, token);
  }

  isLayerOff(part, layer) {
    return this.layers.has(`${stackOf(part)} ${layer}`);
  }

  isHeadOff(part, layer, head) {
    return this.heads.has(`${part} ${layer} ${head}`);
  }

  /** Return the options of a call, without the beginning of the output. */
  switches() {
    return { headOff: [...this.heads.values()], layerOff: [...this.layers.values()], maskedSource: [...this.masked.keys()] };
  }

  options() {
    return { ...this.switches(), prefix: this.prefix.map(({ id }) => id) };
  }

  /** Return [{text, undo}] for each change. */
  list() {
    const changes = [];
    for (const [key, { part, layer, head }] of this.heads) changes.push({ text: `${PARTS[part]}, layer ${layer + 1}, head ${head + 1} is off`, undo: () => this.heads.delete(key) });
    for (const [key, { part, layer }] of this.layers) changes.push({ text: `${part} layer ${layer + 1} is off`, undo: () => this.layers.delete(key) });
    for (const [index, token] of this.masked) {
      const isOnly = [...this.masked.values()].filter((other) => other === token).length === 1;
      changes.push({ text: `token ${isOnly ? "" : `${index + 1}, `}“${token}”${isOnly ? "" : ","} is masked`, undo: () => this.masked.delete(index) });
    }
    if (this.prefix.length) changes.push({ text: `the output begins with “${textOf(this.prefix)}”`, undo: () => { this.prefix = []; } });
    if (this.temperature !== 1) changes.push({ text: `temperature ${this.temperature.toFixed(1)}`, undo: () => { this.temperature = 1; } });
    return changes;
  }
}

/** Return the text of tokens, as far as a list of them needs it: ▁ is a space. */
export const textOf = (tokens) => tokens.map(({ token }) => token.replace("▁", " ")).join("").trim();

function toggle(map, key, value) {
  if (!map.delete(key)) map.set(key, value);
}
