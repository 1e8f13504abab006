// What a reader has to know about the rows of tokens that a page shows.

export const MAX_CHIPS = 60; // tokens of a row: the first ones
export const BYTE = /^<0x[0-9A-F]{2}>$/;

/** Return the notes about rows of tokens, {name: tokens}: how many are not shown, and what a byte is, with a sentence after that. */
export function tokenNotes(rows, afterByte = "") {
  const notes = Object.entries(rows).filter(([, tokens]) => tokens.length > MAX_CHIPS).map(([name, { length }]) => `The first ${MAX_CHIPS} ${name && `${name} `}tokens are shown, … ${length - MAX_CHIPS} more.`);
  const byte = Object.values(rows).flatMap((tokens) => tokens.slice(0, MAX_CHIPS)).find((token) => BYTE.test(token));
  if (byte) notes.push(`Tokens such as ${byte} are bytes: the vocabulary lacks a character, so it is written as its bytes in UTF-8. ${afterByte}`.trim());
  return notes.join(" ");
}
