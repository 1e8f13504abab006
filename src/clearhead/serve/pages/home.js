"use strict";
const byId = (id) => document.getElementById(id);
const say = (text) => { byId("said").textContent = text; };
const headers = () => (byId("key").value ? { Authorization: `Bearer ${byId("key").value}` } : {});

async function models() {
  const response = await fetch("/v1/models", { headers: headers() });
  if (response.status === 401) {
    byId("key-row").hidden = false;
    say("This server wants an API key.");
    return;
  }
  const chosen = byId("model").value;
  const shown = (await response.json()).data.filter((one) => one.uses.includes("view"));
  byId("model").replaceChildren(...shown.map((one) => new Option(one.id, one.id, false, one.id === chosen)));
  say(shown.length ? "" : "No model that can be looked into is loaded yet.");
  document.documentElement.dataset.ready = "yes";
}

byId("key").addEventListener("change", models);
byId("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  say("…");
  try {
    const response = await fetch("/view", {
      method: "POST",
      headers: { "Content-Type": "application/json", ...headers() },
      body: JSON.stringify({ text: byId("text").value, model: byId("model").value }),
    });
    if (!response.ok) {
      say((await response.json()).error.message);
      return;
    }
    byId("view").srcdoc = await response.text();
    byId("view").hidden = false;
    say("");
  } catch {
    say("The server cannot be reached.");
  }
});
models();
