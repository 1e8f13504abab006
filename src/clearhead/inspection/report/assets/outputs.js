/* probabilities of the output tokens, and the beams */
const bar = (probability) => element("span", { class: "probability", style: `width:calc(var(--bar) * ${probability.toFixed(3)})` });

function tableOf(names, rows) {
  const heads = names.map((name) => element("th", { scope: "col", "aria-label": name === "#" ? "position" : name }, name));
  return element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows));
}

const otherTokens = (one) => one.alternatives.filter((other) => other.token !== one.token).slice(0, 3);

function probabilityRow(one, index) {
  const others = otherTokens(one).map((other) => element("span", {}, `${display(other.token)} ${percent(Math.exp(other.log_prob))}`));
  return element("tr", {}, element("td", {}, String(data.prompt.length + index)), element("td", { title: one.token }, display(one.token)),
    element("td", {}, bar(Math.exp(one.log_prob)), percent(Math.exp(one.log_prob))), element("td", { class: "alternatives" }, ...others));
}

function probabilities() {
  const table = element("div");
  byId("word-view").append(table);
  showSome(byId("word-view"), data.output_tokens.length, "tokens", (count) => {
    table.replaceChildren(tableOf(["#", "token", "probability", "alternatives"], data.output_tokens.slice(0, count).map(probabilityRow)));
  });
  const unlikely = data.output_tokens.filter((one) => otherTokens(one).some((other) => other.log_prob > one.log_prob)).map((one) => quoted(one.token));
  if (!unlikely.length) return;
  const listed = unlikely.slice(0, 5).join(", ") + (unlikely.length > 5 ? " …" : "");
  byId("word-view").append(element("p", { class: "hint" }, `Not the most probable at ${unlikely.length > 1 ? "their positions" : "its position"}: ${listed}. `
    + "The search compares whole outputs: a less probable token can lead to a better output. Rules of the checkpoint, such as forced tokens, change the choice, too."));
}

function beams() {
  const size = Math.max(...data.tree.map((column) => column.length), 1), first = data.output_tokens[0];
  const power = data.length_penalty === 1 ? "" : ` to the power of ${data.length_penalty}`;
  const how = size > 1
    ? `Columns are output tokens. At each step, beam search continues every beam with every token of the vocabulary and keeps the best ${size}. A line leads from a beam to its continuation.`
    : "Columns are output tokens. Greedy search keeps only the most probable token at each step.";
  const sum = `The number in a box is the sum of the log-probabilities up to this token. ${quoted(first.token)} has probability ${percent(Math.exp(first.log_prob))}, and ln ${Math.exp(first.log_prob).toFixed(3)} = ${fixed(first.log_prob, 2)}.`;
  const score = `The thick path is the best output. Rounded boxes are the ends of outputs, with their rank. The score is the log-probability divided by the number of tokens${power}: without this, short outputs would win.`;
  const on = "The search goes on after the first end, because another output can still get a better score.";
  byId("beam-hint").append(...[how, sum, score, ...(size > 1 ? [on] : [])].map((text) => element("li", {}, text)));
  const tree = element("div"), ends = data.outputs.map((one, rank) => ({ ...one.end, rank }));
  byId("beam-view").append(tree);
  showSome(byId("beam-view"), Math.max(data.tree.length, ...ends.map((one) => one.step + 1)), "steps", (count) => {
    tree.replaceChildren();
    drawBeams(tree, { start: data.target[0] ?? "", columns: data.tree.slice(0, count), ends: ends.filter((one) => one.step < count) });
  });
  for (const one of data.outputs) {
    byId("beam-outputs").append(element("li", {}, element("bdi", {}, one.text || "(empty)"), element("span", {}, `score ${fixed(one.score, 3)}, log-probability ${fixed(one.log_prob, 3)}`)));
  }
}

if (data.tree) {
  probabilities();
  beams();
}
