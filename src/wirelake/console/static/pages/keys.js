// Keys: the data store as a tree; a key with its revision, edited without overwriting others.

import { Refused, arrows, ask, attempt, findRows, html, inPath, payloadBytes, tell, to, useAnswer, useEffect, useLive, useMemo, useRef, useState, visible, when } from "../lib.js";
import { Card, Confirm, Payload, T, Table } from "../parts.js";

/** @param {{session: import("../lib.js").Session, query: URLSearchParams}} props */
export default function Keys({ session, query }) {
  const key = query.get("key") ?? "";
  const [filter, setFilter] = useState("#");
  const [typed, setTyped] = useState("#");
  const [after, setAfter] = useState("");
  const list = useAnswer(() => ask(`/v1/store?${new URLSearchParams({ filter, ...(after && { after }) })}`), [filter, after]);
  const [made, setMade] = useState("");
  // Both the list and the key that is open follow what is written by others.
  const [changes, setChanges] = useState(/** @type {Record<string, number>} */ ({}));
  const due = useRef(0);
  const mayWatch = session.open || session.admin || session.rights.store.length > 0;
  const { problem } = useLive([], {
    watch: mayWatch ? [filter, ...(key && filter !== "#" ? [key] : [])] : [],
    onMessages: (told) => {
      setChanges((/** @type {any} */ old) => ({ ...old, ...Object.fromEntries(told.messages.map((/** @type {any} */ one) => [one.address, (old[one.address] ?? 0) + 1])) }));
      due.current ||= window.setTimeout(() => { due.current = 0; list.reload(); }, 500);
    },
  });
  useEffect(() => () => clearTimeout(due.current), []);
  const keys = list.value?.keys ?? [];
  const root = useMemo(() => grown(keys), [list.value]);
  return html`<div class="top"><h1>Keys</h1></div>
    <div class="split">
      <${Card} title="All keys" aside=${list.value ? `${keys.length}${list.value.more ? ", and more" : ""}` : ""}>
        <form class="row" onSubmit=${(/** @type {Event} */ e) => { e.preventDefault(); setAfter(""); setFilter(typed || "#"); }}>
          <input class="grow mono" aria-label="Filter" value=${typed} onInput=${(/** @type {any} */ e) => setTyped(e.target.value)} /><button>Show</button></form>
        ${(list.error || problem) && html`<p class="bad" role="alert">${list.error || problem}</p>`}
        <div class="tree" onKeyDown=${arrows("summary,a")}>${root.map((one) => html`<${Branch} key=${one.path} of=${one} chosen=${key} depth=${0} />`)}
          ${list.value && !keys.length && html`<p class="soft">No keys.</p>`}</div>
        <div class="row">${after && html`<button onClick=${() => setAfter("")}>First</button>`}${list.value?.more && html`<button onClick=${() => setAfter(keys[keys.length - 1].key)}>Next</button>`}</div>
        ${session.admin && html`<form class="row" onSubmit=${(/** @type {Event} */ e) => { e.preventDefault(); location.hash = to("keys", { key: made }); setMade(""); }}>
          <input class="grow mono" aria-label="New key" placeholder="new key" required value=${made} onInput=${(/** @type {any} */ e) => setMade(e.target.value)} /><button>New</button></form>`}
      <//>
      ${key ? html`<${Key} key=${key} name=${key} session=${session} change=${changes[key] ?? 0} onChange=${list.reload} />` : html`<${Card} title="Key"><p class="soft">Pick a key on the left.</p><//>`}
    </div>`;
}

/** A level of the tree, and what is below it. @param {{of: any, chosen: string, depth: number}} props */
function Branch({ of, chosen, depth }) {
  const leaf = of.entry && html`<div class="node"><a href=${to("keys", { key: of.path })} aria-current=${of.path === chosen ? "true" : undefined}><${T} v=${of.name || "(empty level)"} /></a><span class="rate">r${of.entry.revision}</span></div>`;
  if (!of.children.length) return leaf;
  return html`${leaf}<details open=${depth === 0 || chosen.startsWith(`${of.path}/`) || of.count < 30}><summary><${T} v=${of.name || "(empty level)"} />/ <span class="soft">${of.count}</span></summary>
    <div class="below">${of.children.map((/** @type {any} */ one) => html`<${Branch} key=${one.path} of=${one} chosen=${chosen} depth=${depth + 1} />`)}</div></details>`;
}

/** Keys as a tree of their levels. @param {any[]} keys */
function grown(keys) {
  const root = { children: /** @type {any[]} */ ([]), known: new Map(), count: 0 };
  for (const entry of keys) {
    /** @type {any} */
    let node = root;
    const levels = entry.key.split("/");
    levels.forEach((/** @type {string} */ name, /** @type {number} */ at) => {
      let child = node.known.get(name);
      if (!child) {
        child = { name, path: levels.slice(0, at + 1).join("/"), children: [], known: new Map(), count: 0, entry: null };
        node.known.set(name, child);
        node.children.push(child);
      }
      child.count += 1;
      node = child;
    });
    node.entry = entry;
  }
  return root.children;
}

/** The value of a key and its revision; null where there is none. @param {string} name */
async function read(name) {
  try {
    const response = await ask(`/v1/store/${inPath(name)}`, { raw: true });
    const data = new Uint8Array(await response.arrayBuffer());
    const revision = (response.headers.get("etag") ?? "").replaceAll('"', "");
    let text = "";
    let isText = true;
    try {
      text = new TextDecoder("utf-8", { fatal: true }).decode(data);
    } catch {
      isText = false;
    }
    return { revision, data, text, isText };
  } catch (error) {
    if (error instanceof Refused && error.status === 404) return { revision: "", data: new Uint8Array(), text: "", isText: true };
    throw error;
  }
}

/** @param {{name: string, session: import("../lib.js").Session, change: number, onChange: () => void}} props */
function Key({ name, session, change, onChange }) {
  const [known, setKnown] = useState(/** @type {any} */ (null));
  const [latest, setLatest] = useState(/** @type {any} */ (null));
  const [draft, setDraft] = useState("");
  const [conflict, setConflict] = useState(/** @type {any} */ (null));
  const [error, setError] = useState("");
  const [question, setQuestion] = useState(false);
  const history = useAnswer(() => (session.log ? findRows(new URLSearchParams([["filter", name], ["op", "set"], ["op", "del"], ["limit", "50"]])) : Promise.resolve({ rows: [] })), [name, latest?.revision]);
  const load = async () => {
    try {
      const found = await read(name);
      setKnown(found);
      setLatest(found);
      setDraft(found.text);
      setConflict(null);
      setError("");
    } catch (reason) {
      setError(reason instanceof Error ? reason.message : String(reason));
    }
  };
  useEffect(() => { load(); }, [name]);
  useEffect(() => { if (change) read(name).then(setLatest, () => {}); }, [change]);
  const write = async (/** @type {string} */ revision) => {
    try {
      const headers = revision ? { "If-Match": `"${revision}"` } : { "If-None-Match": "*" };
      const told = await ask(`/v1/store/${inPath(name)}`, { method: "PUT", body: draft, headers: /** @type {any} */ (headers) });
      tell(`Written; revision ${told.revision}.`);
      await load();
      onChange();
    } catch (reason) {
      if (reason instanceof Refused && reason.status === 412) setConflict(await read(name));
      else tell(reason instanceof Error ? reason.message : String(reason));
    }
  };
  if (error) return html`<${Card} title=${name}><p class="bad" role="alert">${error}</p><//>`;
  if (!known) return html`<${Card} title=${name}><p class="soft">Loading.</p><//>`;
  const moved = latest && latest.revision !== known.revision;
  const row = known.isText ? { value: known.text } : { base64: btoa(String.fromCharCode(...known.data)) };
  return html`<div class="cards">
    <${Card} title=${name} aside=${known.revision ? `revision ${known.revision}` : "there is no such key yet"}>
      ${moved && !conflict && html`<p class="warn" role="status">Somebody has changed it: revision ${latest.revision || "none, it is gone"}. <button onClick=${load}>Show that</button></p>`}
      ${session.admin && known.isText ? html`<label class="field">Value<textarea rows="8" value=${draft} onInput=${(/** @type {any} */ e) => setDraft(e.target.value)}></textarea></label>
        <div class="row"><button class="main" disabled=${draft === known.text && known.revision !== ""} onClick=${() => write(known.revision)}>Write</button>
          <button onClick=${load}>Take back</button>${known.revision && html`<button class="danger" onClick=${() => setQuestion(true)}>Remove</button>`}</div>` : html`<${Payload} message=${row} />`}
      ${conflict && html`<div role="alert"><h3>Conflict: it has revision ${conflict.revision || "none"} by now, and you began with ${known.revision || "none"}</h3>
        <${Difference} left=${conflict.text} right=${draft} />
        <div class="row"><button class="main" onClick=${() => write(conflict.revision)}>Overwrite it with mine</button><button onClick=${load}>Take theirs</button></div></div>`}<//>
    <${Card} title="History" aside="from the log">
      <${Table} name="History" rows=${history.value?.rows ?? []} empty=${session.log ? "The log has nothing of it." : "There is no log."} columns=${[
        { key: "time", title: "time", show: (/** @type {any} */ one) => when(one.time) },
        { key: "op", title: "change", show: (/** @type {any} */ one) => (one.op === "del" ? "removed" : `revision ${one.headers?.["$rev"] ?? "?"}`) },
        { key: "source", title: "by" },
        { key: "payload", title: "value", wide: true, show: (/** @type {any} */ one) => html`<span class="mono"><${T} v=${one.payload ?? `${payloadBytes(one).length} bytes`} /></span>` },
        ...(session.admin ? [{ key: "use", title: "", show: (/** @type {any} */ one) => one.payload !== undefined && one.op === "set" && html`<button onClick=${() => setDraft(one.payload)}>Use</button>` }] : []),
      ]} /><//>
    ${question && html`<${Confirm} title="Remove the key?" verb="Remove" onClose=${() => setQuestion(false)} onDo=${() => attempt(() => ask(`/v1/store/${inPath(name)}`, { method: "DELETE", headers: { "If-Match": `"${known.revision}"` } }), "Removed.").then(load).then(onChange)}><p><${T} v=${name} /></p><//>`}
  </div>`;
}

/** Two texts line by line; what differs is marked. @param {{left: string, right: string}} props */
function Difference({ left, right }) {
  const [a, b] = [left.split("\n"), right.split("\n")];
  const show = (/** @type {string[]} */ lines, /** @type {string[]} */ other) => lines.map((line) => (other.includes(line) ? html`<div>${visible(line) || " "}</div>` : html`<div><mark>${visible(line) || " "}</mark></div>`));
  return html`<div class="diff"><div><strong>Theirs</strong><pre>${show(a, b)}</pre></div><div><strong>Mine</strong><pre>${show(b, a)}</pre></div></div>`;
}
