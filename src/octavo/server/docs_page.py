"""/docs: the OpenAPI document as a page of its own.

Refuses hosts other than this server: no script, font or style comes from elsewhere, so the page works offline.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI


def install_openapi(app: FastAPI) -> None:
    """Has the app answer /openapi.json with the document of `octavo.server.openapi`, made once."""
    made: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not made:
            from octavo.server.openapi import make_document

            made.update(make_document(app))
        return made

    app.openapi = openapi  # type: ignore[method-assign]


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>octavo API</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
code, pre { font-family: ui-monospace, monospace; font-size: .9em; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .2rem .6rem; vertical-align: top;
border-bottom: 1px solid color-mix(in srgb, currentColor 20%, transparent); }
.method { font-weight: 700; text-transform: uppercase; margin-right: .5rem; }
details > summary { cursor: pointer; }
</style></head><body>
<h1>octavo API</h1><p>The same as a document: <a href="openapi.json">openapi.json</a></p>
<main id="routes">loading</main>
<script>
"use strict";
const make = (tag, text, parent) => {
  const node = document.createElement(tag); node.textContent = text; if (parent) parent.append(node); return node;
};
const words = (schema) => {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(words).join(" | ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  let text = schema.type || "any";
  if (schema.type === "array") text = `list of ${words(schema.items) || "any"}`;
  for (const [name, sign] of [["minimum", ">="], ["exclusiveMinimum", ">"], ["maximum", "<="],
    ["maxItems", "entries <="],
    ["maxLength", "characters <="], ["maxProperties", "keys <="]])
    if (schema[name] !== undefined) text += ` ${sign} ${schema[name]}`;
  return text;
};
const fields = (model, all, parent) => {
  const table = make("table", "", parent);
  for (const [name, schema] of Object.entries(model.properties || {})) {
    const row = make("tr", "", table);
    make("code", name + ((model.required || []).includes(name) ? " (needed)" : ""), make("td", "", row));
    make("td", words(schema), row);
    make("td", schema["x-octavo"] || schema.description || "", row);
  }
};
fetch("openapi.json").then((answer) => answer.json()).then((api) => {
  const main = document.getElementById("routes"), all = api.components ? api.components.schemas : {};
  main.textContent = "";
  for (const [path, methods] of Object.entries(api.paths))
    for (const [method, route] of Object.entries(methods)) {
      const title = make("h2", "", main);
      make("span", method, title).className = "method"; make("code", path, title);
      make("p", route.description || route.summary || "", main);
      const body = route.requestBody && route.requestBody.content["application/json"].schema.$ref.split("/").pop();
      if (body) { const more = make("details", "", main); make("summary", body, more); fields(all[body], all, more); }
    }
  const shapes = make("details", "", main); make("summary", "all shapes", shapes);
  for (const [name, model] of Object.entries(all)) { make("h3", name, shapes); fields(model, all, shapes); }
}).catch(() => { document.getElementById("routes").textContent = "openapi.json could not be read"; });
</script></body></html>
"""
PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
