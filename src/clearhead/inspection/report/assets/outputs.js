/* probabilities of the output tokens, and the beams */
const bar = (probability) => element("span", { class: "probability", style: `width:calc(var(--bar) * ${probability.toFixed(3)})` });

function tableOf(names, rows) {
  return element("table", {}, element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)))), element("tbody", {}, ...rows));
}

function probabilities() {
  const unlikely = []; // tokens that were not the most probable ones
  const rows = data.output_tokens.map((one, index) => {
    const others = one.alternatives.filter((other) => other.token !== one.token).slice(0, 3);
    if (others.some((other) => other.log_prob > one.log_prob)) unlikely.push(quoted(one.token));
    return element("tr", {}, element("td", {}, String(data.prompt.length + index)), element("td", { title: one.token }, display(one.token)),
      element("td", {}, bar(Math.exp(one.log_prob)), percent(Math.exp(one.log_prob))),
      element("td", { class: "alternatives" }, ...others.map((other) => element("span", {}, `${display(other.token)} ${percent(Math.exp(other.log_prob))}`))));
  });
  byId("word-view").append(tableOf(["position", "token", "probability", "alternatives"], rows));
  if (unlikely.length) {
    const listed = unlikely.slice(0, 5).join(", ") + (unlikely.length > 5 ? " …" : "");
    byId("word-view").append(element("p", { class: "hint" }, `Not the most probable at ${unlikely.length > 1 ? "their positions" : "its position"}: ${listed}. `
      + "The search compares whole outputs: a less probable token can lead to a better output. Rules of the checkpoint, such as forced tokens, change the choice, too."));
  }
}

function beams() {
  const size = Math.max(...data.tree.map((column) => column.length), 1), first = data.output_tokens[0];
  const power = data.length_penalty === 1 ? "" : ` to the power of ${data.length_penalty}`;
  const how = size > 1
    ? `Each column is one output token. At each step, beam search continues every beam with every token of the vocabulary and keeps the best ${size}. A line leads from a beam to its continuation.`
    : "Each column is one output token. Greedy search keeps only the most probable token at each step.";
  byId("beam-hint").textContent = `${how} The number in a box is the sum of the log-probabilities up to this token: ${quoted(first.token)} has probability ${percent(Math.exp(first.log_prob))}, and ln ${Math.exp(first.log_prob).toFixed(3)} = ${first.log_prob.toFixed(2)}. `
    + `The thick path is the best output. Rounded boxes are the ends of outputs, with their rank. The score of an output is its log-probability divided by its number of tokens${power}, so that long outputs can win.`;
  drawBeams(byId("beam-view"), { start: data.target[0] ?? "", columns: data.tree, ends: data.outputs.map((one) => one.end) });
  for (const one of data.outputs) {
    byId("beam-outputs").append(element("li", {}, element("bdi", {}, one.text || "(empty)"), element("span", {}, `score ${one.score.toFixed(3)}, log-probability ${one.log_prob.toFixed(3)}`)));
  }
}

if (data.tree) {
  probabilities();
  beams();
}
