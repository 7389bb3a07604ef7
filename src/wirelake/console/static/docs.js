// Makes the page /docs interactive: every operation gets a form that sends it.

/** @param {string} tag @param {Record<string, string>} [attributes] @param {...(Node | string)} children */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A form for an operation. @param {string} method @param {string} path @param {any} operation @param {string} csrf */
function form(method, path, operation, csrf) {
  const made = /** @type {HTMLFormElement} */ (make("form"));
  const fields = (operation.parameters ?? []).map((/** @type {any} */ one) => {
    const input = /** @type {HTMLInputElement} */ (make("input", { name: one.name, placeholder: one.description ?? "", ...(one.required && { required: "" }) }));
    made.append(make("label", {}, `${one.name} (${one.in}) `, input), make("br"));
    return { ...one, input };
  });
  const body = /** @type {HTMLTextAreaElement} */ (make("textarea", { rows: "3", cols: "60", "aria-label": "Body" }));
  const kind = Object.keys(operation.requestBody?.content ?? {})[0];
  if (kind) made.append(make("label", {}, `body, ${kind} `, make("br"), body), make("br"));
  const result = make("pre", { role: "status" });
  made.append(make("button", {}, `${method.toUpperCase()}`), result);
  made.addEventListener("submit", async (event) => {
    event.preventDefault();
    const query = new URLSearchParams();
    /** @type {Record<string, string>} */
    const headers = csrf && method !== "get" ? { "Wirelake-Csrf": csrf } : {};
    let place = path;
    for (const one of fields) {
      const value = one.input.value;
      if (one.in === "path") place = place.replace(`{${one.name}}`, value.split("/").map(encodeURIComponent).join("/"));
      else if (value && one.in === "query") (one.schema?.type === "array" ? value.split(" ") : [value]).forEach((/** @type {string} */ part) => query.append(one.name, part));
      else if (value) headers[one.name] = value;
    }
    if (kind === "application/json") headers["Content-Type"] = kind;
    const stop = new AbortController();
    const timer = setTimeout(() => stop.abort(), 10_000); // event streams never end
    try {
      const response = await fetch(`${place}${query.size ? `?${query}` : ""}`, { method: method.toUpperCase(), headers, body: kind ? body.value : undefined, signal: stop.signal });
      result.textContent = `${response.status} ${response.statusText}\n`;
      const reader = response.body?.getReader();
      const text = new TextDecoder();
      while (reader && (result.textContent ?? "").length < 20_000) {
        const { done, value } = await reader.read();
        if (done) break;
        result.textContent += text.decode(value, { stream: true });
      }
      stop.abort();
    } catch (error) {
      result.textContent += `\n(${error instanceof Error ? error.message : error})`;
    }
    clearTimeout(timer);
  });
  return made;
}

const [described, session] = await Promise.all([
  fetch("/openapi.json").then((response) => response.json()),
  fetch("/v1/session").then((response) => response.json()).catch(() => ({})),
]);
for (const place of document.querySelectorAll("dt[data-path]")) {
  const { path = "", method = "" } = /** @type {HTMLElement} */ (place).dataset;
  const details = make("details", {}, make("summary", {}, "Try it"));
  details.addEventListener("toggle", () => {
    if (details.childElementCount === 1) details.append(form(method, path, described.paths[path][method], session.csrf ?? ""));
  });
  place.nextElementSibling?.append(details);
}
export {};
