"""The page at ``/docs``: what can be asked, and a form to ask it; it loads nothing else."""

import json
from html import escape

from slide.model import Model
from slide.predict.rows import Numbering
from slide.utils.checks import counted

_PAGE = """\
<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>slide: $name</title><link rel="icon" href="data:,">
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 50em; margin: 2em auto; padding: 0 1em; }
textarea, pre { font: 13px/1.5 ui-monospace, monospace; width: 100%; box-sizing: border-box; }
pre { background: #f4f4f4; padding: .7em; overflow: auto; white-space: pre-wrap; }
h1 { overflow-wrap: anywhere; }
table { border-collapse: collapse; } td { padding: .2em 1em .2em 0; vertical-align: top; }
button { font: inherit; padding: .2em 1em; } small { color: #555; }
</style></head>
<body>
<h1>$name</h1>
<p>$about</p>
<h2>Ask</h2>
<p><textarea id="body" rows="7" aria-label="request">$example</textarea></p>
<p><button id="ask">POST predict</button> <small id="status"></small></p>
<pre id="answer" hidden></pre>
<p>The same from a shell:</p>
<pre id="shell"></pre>
<h2>Addresses</h2>
<div id="paths">They are in <a href="openapi.json">openapi.json</a>.</div>
<div id="keys"></div>
<script>
const at = id => document.getElementById(id), body = at("body");
const url = new URL("predict", location).href;
const show = () => at("shell").textContent =
  `curl ${url} \\\\\\n  -H 'Content-Type: application/json' \\\\\\n  -d '` +
  body.value.replaceAll("'", "'\\\\''") + "'";
body.oninput = show; show();
at("ask").onclick = async () => {
  const begin = performance.now(), answer = at("answer");
  answer.hidden = false;
  try {
    const found = await fetch(url, {method: "POST", body: body.value,
      headers: {"Content-Type": "application/json"}});
    const text = await found.text();
    at("status").textContent =
      `${found.status} ${found.statusText}, ${(performance.now() - begin).toFixed(0)} ms`;
    try { answer.textContent = JSON.stringify(JSON.parse(text), null, 1); }
    catch { answer.textContent = text; }
  } catch (error) { answer.textContent = `no answer: ${error.message}`; }
};
const table = (title, rows) => {
  const parts = [Object.assign(document.createElement("h3"), {textContent: title})];
  parts.push(document.createElement("table"));
  for (const row of rows) {
    const line = parts[1].insertRow();
    for (const cell of row) line.insertCell().textContent = cell;
  }
  return parts;
};
fetch("openapi.json").then(found => found.json()).then(({paths}) => {
  const ways = Object.entries(paths).flatMap(([path, each]) => Object.entries(each).map(
    ([method, way]) => [`${method.toUpperCase()} ${path}`, way.description || way.summary]));
  at("paths").replaceChildren(...table("", ways).slice(1));
  const query = paths["/predict"].post.requestBody.content["application/json"].schema.properties;
  const row = query.rows.items.properties;
  for (const [title, keys] of [["Keys of a request", query], ["Keys of a row", row]])
    at("keys").append(...table(title, Object.entries(keys).map(
      ([key, each]) => [key, [each.description, "default" in each && each.default !== null ?
        `default ${each.default}` : ""].filter(Boolean).join("; ")])));
});
</script>
</body></html>
"""


def docs_page(model: Model) -> str:
    """The page for a model, with a row of its kind as the example."""
    first = Numbering.of(model).first_feature
    row: dict[str, object] = {"indices": [first, first + 1], "values": [1, 0.5]}
    if model.columns is not None:
        row = dict.fromkeys(model.columns.text, "a text")
        row |= model.columns.usual_numbers()
    elif model.feature_names is not None:
        row = {"features": {str(model.feature_names[0]): 1}}
    sizes = counted(model.num_features, "feature"), counted(model.num_labels, "label")
    said = {
        "name": model.name or "model",
        "about": f"{', '.join(sizes)}. A row gets the best labels with their scores.",
        "example": json.dumps({"rows": [row], "k": min(5, model.num_labels)}, ensure_ascii=False),
    }
    page = _PAGE
    for key, text in said.items():
        page = page.replace(f"${key}", escape(text))
    return page
