// Tokenize texts: reads {spec, texts, maxLength}, and writes [[ids, truncated, decoded], ...].
import { readFileSync } from "node:fs";
import { Tokenizer } from "../../../web/source/tokenizer/tokenizer.js";

const { spec, texts, maxLength } = JSON.parse(readFileSync(0, "utf8"));
const tokenizer = new Tokenizer(spec);
const results = texts.map((text) => {
  const { ids, truncated } = tokenizer.encode(text, maxLength ?? undefined);
  return [ids, truncated, tokenizer.decode(ids)];
});
process.stdout.write(JSON.stringify(results));
