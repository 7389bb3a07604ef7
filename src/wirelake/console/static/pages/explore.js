// Explore: the tree of addresses with live rates, a tail of any filter, and publishing beside it.

import { arrows, ask, attempt, clock, html, inPath, payloadBytes, perSecond, to, useEffect, useKeptFocus, useMemo, useRef, useState, useLive, visible } from "../lib.js";
import { Card, Choice, Copy, Dialect, Message, T } from "../parts.js";

const KEPT = 2000;
const SHOWN = 250;
/** Children of a node that are shown before one asks for more. */
const CHILDREN = 200;

/** @param {{session: import("../lib.js").Session, query: URLSearchParams}} props */
export default function Explore({ session, query }) {
  const [filter, setFilter] = useState(query.get("filter") ?? "");
  const [typed, setTyped] = useState(filter);
  const [rate, setRate] = useState(200);
  const [paused, setPaused] = useState(false);
  const [search, setSearch] = useState("");
  const [chosen, setChosen] = useState(/** @type {any} */ (null));
  const [draft, setDraft] = useState(/** @type {any} */ ({ address: query.get("address") ?? "", payload: "" }));
  const tail = useTail();
  const { figures, problem } = useLive(["addresses"], { filters: filter ? [filter] : [], rate, onMessages: (told) => !paused && tail.add(told) });
  const listen = (/** @type {string} */ wanted) => {
    setTyped(wanted);
    setFilter(wanted);
    tail.clear();
    setChosen(null);
    setPaused(false);
  };
  const wanted = search.toLowerCase();
  const rows = useMemo(() => {
    const all = tail.messages;
    const found = wanted ? all.filter((one) => `${one.address} ${one.payload ?? ""} ${one.source ?? ""} ${one.dialect}`.toLowerCase().includes(wanted)) : all;
    return found.slice(-SHOWN).reverse();
  }, [tail.turn, wanted]);
  const place = (/** @type {any} */ one) => ({ address: one.address, ...(one.offset !== undefined ? { offset: `${one.partition}:${one.offset}` } : { time: one.time }) });
  return html`<div class="top"><h1>Explore</h1><p class="soft">Addresses with messages a second, from the log; a tail never slows the broker.</p></div>
    <div class="explore">
      <${Card} title="Addresses"><${Tree} part=${figures?.addresses} onPick=${listen} picked=${filter} /><//>
      <${Card} title="Tail" aside=${problem ? html`<span class="bad" role="alert">${problem}</span>` : filter ? `${tail.rate}/s shown${tail.skipped ? `, ${tail.skipped.toLocaleString("en")} skipped` : ""}` : "pick an address, or name a filter"}>
          <form class="row" onSubmit=${(/** @type {Event} */ e) => { e.preventDefault(); listen(typed.trim()); }}>
            <input class="grow mono" size="24" aria-label="Filter" placeholder="house/# or house/+/temp" value=${typed} onInput=${(/** @type {any} */ e) => setTyped(e.target.value)} />
            <button class="main">Listen</button>
            <button type="button" data-key="p" title="p" disabled=${!filter} aria-pressed=${String(paused)} onClick=${() => setPaused(!paused)}>${paused ? "Go on" : "Pause"}</button>
            <button type="button" onClick=${() => { tail.clear(); setChosen(null); }}>Clear</button>
            <input aria-label="Search in what is shown" placeholder="search" value=${search} onInput=${(/** @type {any} */ e) => setSearch(e.target.value)} />
            <select aria-label="Messages a second at most" value=${rate} onChange=${(/** @type {any} */ e) => setRate(Number(e.target.value))}>
              ${[20, 200, 1000, 2000].map((one) => html`<option value=${one}>≤ ${one}/s</option>`)}</select>
          </form>
          ${rows.length ? html`<div class="tail" role="listbox" aria-label="Messages" tabindex="0" onKeyDown=${arrows(".line")}>
            ${rows.map((one) => html`<button type="button" role="option" class="line" tabindex="-1" key=${one.key} aria-selected=${String(chosen?.key === one.key)} onClick=${() => setChosen(one)} onFocus=${() => setChosen(one)}>
              <span class="soft">${clock(one.time).slice(0, 8)}<span class="opt">${clock(one.time).slice(8)}</span></span><span class="opt"><${Dialect} of=${one.dialect} /></span><span><${T} v=${one.address} /></span>
              <span class="mono"><${T} v=${one.payload ?? (one.cbor !== undefined ? JSON.stringify(one.cbor) : `${one.size} bytes`)} /></span><span class="soft end opt">${one.size} B</span></button>`)}
          </div>` : html`<div class="tail"><p class="empty soft">${!filter ? "Choose an address, or enter a filter." : wanted ? "No message matches the search." : paused ? "Paused." : "Waiting for messages."}</p></div>`}<//>
      <div class="beside">
        ${chosen && html`<${Card} title="Message" aside=${html`<span class="row"><a href=${to("message", place(chosen))}>its way</a>
            <a href=${to("inspector", place(chosen))}>inspect</a>
            <button onClick=${() => setDraft({ address: chosen.address, payload: chosen.payload ?? "", headers: chosen.headers })}>Use for publishing</button></span>`}>
          <${Message} message=${chosen} /><//>`}
        <${Publish} session=${session} draft=${draft} setDraft=${setDraft} />
      </div>
    </div>`;
}

/** The latest messages, drawn at most once a frame. */
function useTail() {
  const kept = useRef({ messages: /** @type {any[]} */ ([]), skipped: 0, next: 0, times: /** @type {number[][]} */ ([]) });
  const [turn, setTurn] = useState(0);
  const due = useRef(0);
  useEffect(() => () => cancelAnimationFrame(due.current), []);
  const draw = () => {
    if (!due.current) due.current = requestAnimationFrame(() => { due.current = 0; setTurn((/** @type {number} */ old) => old + 1); });
  };
  const now = performance.now();
  const recent = kept.current.times.filter(([at]) => now - at < 2000);
  return {
    turn,
    messages: kept.current.messages,
    skipped: kept.current.skipped,
    rate: Math.round(recent.reduce((sum, [, count]) => sum + count, 0) / 2),
    add(/** @type {any} */ told) {
      const mine = kept.current;
      for (const one of told.messages) one.key = mine.next++;
      mine.messages = [...mine.messages, ...told.messages].slice(-KEPT);
      mine.skipped += told.skipped;
      mine.times = [...mine.times.filter(([at]) => performance.now() - at < 2000), [performance.now(), told.messages.length]];
      draw();
    },
    clear() {
      Object.assign(kept.current, { messages: [], skipped: 0, times: [] });
      draw();
    },
  };
}

/** @param {{part: any, onPick: (filter: string) => void, picked: string}} props */
function Tree({ part, onPick, picked }) {
  const [open, setOpen] = useState(/** @type {Record<string, boolean>} */ ({}));
  const [search, setSearch] = useState("");
  const [order, setOrder] = useState("name");
  const root = useMemo(() => grow(part, search), [part, search]);
  const box = useKeptFocus();
  if (!part) return html`<p class="soft">Loading.</p>`;
  const byName = (/** @type {any} */ a, /** @type {any} */ b) => (a[0] < b[0] ? -1 : 1);
  const sorted = (/** @type {any} */ node) => [...node.children.entries()].sort(order === "name" ? byName : (a, b) => b[1].rate - a[1].rate || byName(a, b));
  /** @type {(node: any, path: string, depth: number) => any} */
  const walk = (node, path, depth) => {
    const children = sorted(node);
    const most = open[`${path} all`] ? children.length : CHILDREN;
    return html`<ul role=${depth ? "group" : "tree"} aria-label=${depth ? undefined : "Addresses"}>${children.slice(0, most).map(([name, child], at) => {
      const full = depth ? `${path}/${name}` : name;
      const isOpen = open[full] ?? (search !== "" || (depth === 0 && children.length <= 3));
      const isLeaf = !child.children.size;
      const isPicked = picked === full || picked === `${full}/#`;
      return html`<li key=${name} role="treeitem" aria-expanded=${isLeaf ? undefined : String(isOpen)} aria-selected=${String(isPicked)}><div class="node">
          ${isLeaf ? html`<span class="twist"></span>` : html`<button class="twist" tabindex="-1" aria-label=${`${isOpen ? "Close" : "Open"} ${visible(full)}`} onClick=${() => setOpen({ ...open, [full]: !isOpen })}>${isOpen ? "▾" : "▸"}</button>`}
          <button class=${`name ${isPicked ? "picked" : ""}`} tabindex=${depth || at ? -1 : 0} title=${visible(full)} onClick=${() => onPick(isLeaf ? full : `${full}/#`)}><${T} v=${name || "(empty level)"} /></button>
          ${child.kind && html`<span class="tag">${child.kind}</span>`}<span class="rate">${perSecond(child.rate)}</span></div>
        ${!isLeaf && isOpen ? walk(child, full, depth + 1) : null}</li>`;
    })}${children.length > most && html`<li role="none"><button onClick=${() => setOpen({ ...open, [`${path} all`]: true })}>${children.length - most} more</button></li>`}</ul>`;
  };
  const sideways = (/** @type {KeyboardEvent} */ event, /** @type {HTMLElement} */ item) => {
    const branch = item.closest("[role=treeitem]");
    const isOpen = branch?.getAttribute("aria-expanded");
    const up = /** @type {HTMLElement | null | undefined} */ (branch?.parentElement?.closest("[role=treeitem]")?.querySelector(".name"));
    if (event.key === "ArrowRight" && isOpen === "false") /** @type {HTMLElement} */ (item.previousElementSibling).click();
    else if (event.key === "ArrowLeft" && isOpen === "true") /** @type {HTMLElement} */ (item.previousElementSibling).click();
    else if (event.key === "ArrowLeft") up?.focus();
    else return;
    event.preventDefault();
  };
  return html`<div class="row"><input class="grow" aria-label="Search addresses" placeholder="search" value=${search} onInput=${(/** @type {any} */ e) => setSearch(e.target.value)} />
      <${Choice} name="Order" of=${["name", "rate"]} value=${order} onChange=${setOrder} /></div>
    <p class="soft">${Object.keys(part.rates).length.toLocaleString("en")} addresses with traffic${part.sampled ? ", sampled" : ""}. <button class="link" onClick=${() => onPick("#")}>Listen to all</button></p>
    <div class="tree" ref=${box} onKeyDown=${arrows(".name", sideways)}>${root.children.size ? walk(root, "", 0) : html`<p class="soft">Nothing is published, subscribed to or queued yet.</p>`}</div>`;
}

/** The tree of all addresses that are known. @param {any} part @param {string} search */
function grow(part, search) {
  const make = () => ({ children: new Map(), rate: 0, kind: "" });
  const root = make();
  const add = (/** @type {string} */ address, /** @type {number} */ rate, /** @type {string} */ kind) => {
    if (!address || (search && !address.includes(search))) return; // direct messages have none
    let node = root;
    for (const level of address.split("/")) {
      let child = node.children.get(level);
      if (!child) node.children.set(level, (child = make()));
      child.rate += rate;
      node = child;
    }
    node.kind ||= kind;
  };
  for (const [address, rate] of Object.entries(part?.rates ?? {})) add(address, rate, "");
  for (const one of part?.queues ?? []) add(one, 0, "queue");
  for (const one of part?.services ?? []) add(one.address, 0, "service");
  for (const one of part?.topics ?? []) if (!/[+#]/.test(one.filter)) add(one.filter, 0, "");
  return root;
}

/** @param {{session: import("../lib.js").Session, draft: any, setDraft: (draft: any) => void}} props */
function Publish({ session, draft, setDraft }) {
  const [more, setMore] = useState({ id: "", priority: "0", ttl: "", headers: "" });
  const [form, setForm] = useState("curl");
  const [dialect, setDialect] = useState("kobold-3");
  const may = session.open || (session.admin && session.rights.publish.length > 0);
  useEffect(() => {
    if (draft.headers) setMore((/** @type {any} */ old) => ({ ...old, headers: Object.entries(draft.headers).map(([k, v]) => `${k}: ${v}`).join("\n") }));
  }, [draft.headers]);
  const headers = Object.fromEntries(more.headers.split("\n").filter((one) => one.includes(":")).map((one) => [one.slice(0, one.indexOf(":")).trim(), one.slice(one.indexOf(":") + 1).trim()]));
  /** @type {Record<string, string>} */
  const sent = { ...(more.id && { "Wirelake-Id": more.id }), ...(more.priority === "1" && { "Wirelake-Priority": "1" }), ...(more.ttl && { "Wirelake-Ttl": more.ttl }) };
  for (const [name, value] of Object.entries(headers)) sent[`Wirelake-Header-${name}`] = value;
  const publish = (/** @type {Event} */ event) => {
    event.preventDefault();
    attempt(() => ask(`/v1/publish/${inPath(draft.address)}`, { method: "POST", body: draft.payload, headers: sent }), `Published to ${draft.address}.`);
  };
  const frame = useFrame(form === "curl" ? "" : dialect, draft, more, headers);
  const same = form === "bytes" ? readable(frame) : sameAs(form, dialect, draft, more, sent, session);
  const set = (/** @type {string} */ name) => (/** @type {any} */ e) => setMore({ ...more, [name]: e.target.value });
  return html`<${Card} title="Publish" aside=${may ? "" : "this token may not publish from here"}>
    <form onSubmit=${publish}>
      <label class="field">Address<input class="mono" required value=${draft.address} onInput=${(/** @type {any} */ e) => setDraft({ ...draft, address: e.target.value })} /></label>
      <label class="field">Payload<textarea rows="3" value=${draft.payload} onInput=${(/** @type {any} */ e) => setDraft({ ...draft, payload: e.target.value })}></textarea></label>
      <details><summary>Id, priority, time to live, headers</summary><div class="form">
        <label class="field">Id<input value=${more.id} onInput=${set("id")} /></label>
        <label class="field">Priority<select value=${more.priority} onChange=${set("priority")}><option value="0">normal</option><option value="1">first</option></select></label>
        <label class="field">Time to live, ms<input type="number" min="0" value=${more.ttl} onInput=${set("ttl")} /></label></div>
        <label class="field">Headers, a line each<textarea rows="2" placeholder="colour: red" value=${more.headers} onInput=${set("headers")}></textarea></label></details>
      <div class="row"><button class="main" disabled=${!may || !draft.address}>Publish</button></div>
    </form>
    <h3>The same as</h3>
    <div class="row"><${Choice} name="The same as" of=${["curl", "CLI", "Python", "bytes"]} value=${form} onChange=${setForm} />
      ${form !== "curl" && html`<select aria-label="Dialect" value=${dialect} onChange=${(/** @type {any} */ e) => setDialect(e.target.value)}>${session.dialects.map((one) => html`<option>${one}</option>`)}</select>`}
      <${Copy} text=${same} /></div>
    <pre tabindex="0" aria-label="The same as a command">${visible(same, "\n")}</pre>
    ${form !== "curl" && frame && html`<p class="soft" role="note"><${Dialect} of=${dialect} />: ${frame.refused ? html`<span class="bad">cannot say it: ${visible(frame.refused).replaceAll("_", " ")}</span>`
      : html`${frame.size} bytes; ${frame.lost?.length ? html`<span class="warn">cannot say ${frame.lost.join(", ").replaceAll("_", " ")}</span>` : "says all of it"}. <a href=${to("inspector", { hex: hexOf(frame), dialect })}>Inspect the frame</a>`}
      ${!session.about[dialect]?.port && form !== "bytes" ? html` <span class="warn">This broker has no listener for it.</span>` : ""}</p>`}<//>`;
}

/** The frame that a client would publish, and what is lost in it. @param {string} dialect @param {any} draft @param {any} more @param {any} headers */
function useFrame(dialect, draft, more, headers) {
  const [frame, setFrame] = useState(/** @type {any} */ (null));
  const body = { client: true, address: draft.address, payload: draft.payload, id: more.id, priority: Number(more.priority), ttl: Number(more.ttl || 0), headers };
  useEffect(() => {
    setFrame(null);
    if (!dialect || !draft.address) return undefined;
    const timer = setTimeout(() => ask("/v1/translate", { method: "POST", body }).then((told) => setFrame(told.translations.find((/** @type {any} */ one) => one.dialect === dialect)), (error) => setFrame({ refused: error.message })), 200);
    return () => clearTimeout(timer);
  }, [dialect, JSON.stringify(body)]);
  return frame;
}

/** @param {any} frame */
const hexOf = (frame) => [...payloadBytes(frame)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");

/** A frame as text where all of it can be read, else as hex. @param {any} frame */
function readable(frame) {
  if (!frame?.base64) return frame ? "" : "Name an address.";
  const data = [...payloadBytes(frame)];
  return data.every((byte) => byte > 31 && byte < 127) ? String.fromCharCode(...data) : hexOf(frame).replaceAll(/(.{47}) /g, "$1\n");
}

/** @param {string} text */
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** The same publish by other means. @param {string} form @param {string} dialect @param {any} draft @param {any} more @param {Record<string, string>} sent @param {any} session */
function sameAs(form, dialect, draft, more, sent, session) {
  const token = session.open ? "" : "$TOKEN";
  if (form === "curl") {
    const extra = Object.entries(sent).map(([name, value]) => ` \\\n  -H ${quoted(`${name}: ${value}`)}`).join("");
    return `curl -X POST ${quoted(`${location.origin}/v1/publish/${inPath(draft.address)}`)}${token && ` \\\n  -H "Authorization: Bearer ${token}"`}${extra} \\\n  --data-binary ${quoted(draft.payload)}`;
  }
  const port = session.about[dialect]?.port;
  const url = `${dialect}://${location.hostname}${port ? `:${port}` : ""}`;
  const own = Object.entries(sent).filter(([k]) => k.startsWith("Wirelake-Header-")).map(([k, v]) => [k.slice(16), v]);
  if (form === "CLI") {
    const extra = [...(more.ttl ? [`--ttl ${more.ttl}`] : []), ...(more.priority === "1" ? ["--priority 1"] : []), ...(more.id ? [`--id ${quoted(more.id)}`] : []), ...own.map(([k, v]) => `--header ${quoted(`${k}=${v}`)}`)];
    return [`${token && 'WIRELAKE_TOKEN="$TOKEN" '}wirelake pub ${url}`, quoted(draft.address), quoted(draft.payload), ...extra].join(" ");
  }
  const options = [JSON.stringify(draft.address), `${JSON.stringify(draft.payload)}.encode()`];
  if (more.ttl) options.push(`ttl=${more.ttl}`);
  if (more.priority === "1") options.push("priority=1");
  if (more.id) options.push(`id=${JSON.stringify(more.id)}`);
  if (own.length) options.push(`headers=${JSON.stringify(Object.fromEntries(own))}`);
  const shown = token ? ', token=os.environ["TOKEN"]' : "";
  return `${token && "import os\n\n"}import wirelake\n\nwith wirelake.connect_sync(${JSON.stringify(url)}${shown}) as client:\n    client.publish(${options.join(", ")})`;
}
