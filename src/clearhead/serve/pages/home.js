"use strict";
const byId = (id) => document.getElementById(id);
const showMessage = (text) => { byId("message").textContent = text; };
const headers = () => (byId("key").value ? { Authorization: `Bearer ${byId("key").value}` } : {});

async function loadModels() {
  const response = await fetch("/v1/models", { headers: headers() });
  if (response.status === 401) {
    byId("key-row").hidden = false;
    showMessage("This server requires an API key.");
    return;
  }
  const selected = byId("model").value;
  const viewable = (await response.json()).data.filter((model) => model.tasks.includes("view"));
  byId("model").replaceChildren(...viewable.map((model) => new Option(model.id, model.id, false, model.id === selected)));
  showMessage(viewable.length ? "" : "No model that supports this view is loaded yet.");
  document.documentElement.dataset.ready = "yes";
}

byId("key").addEventListener("change", loadModels);
byId("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  showMessage("…");
  try {
    const response = await fetch("/view", {
      method: "POST",
      headers: { "Content-Type": "application/json", ...headers() },
      body: JSON.stringify({ text: byId("text").value, model: byId("model").value }),
    });
    if (!response.ok) {
      showMessage((await response.json()).error.message);
      return;
    }
    byId("view").srcdoc = await response.text();
    byId("view").hidden = false;
    showMessage("");
  } catch {
    showMessage("The server did not respond.");
  }
});
loadModels();
