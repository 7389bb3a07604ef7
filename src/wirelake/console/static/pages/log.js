// Log: what has passed, by time; filtered by address, dialect, op, header or text; to be exported.

import { Refused, ask, clock, continued, count, html, save, tell, to, useAnswer, useEffect, useState, when } from "../lib.js";
import { BY_DIALECT, Card, Chart, Choice, Message, T, Table } from "../parts.js";

const OPS = ["publish", "enqueue", "deliver", "ack", "nack", "dead", "request", "reply", "error", "set", "del", "direct", "open", "close"];
const SPANS = /** @type {[string, number][]} */ ([["15 min", 900], ["1 h", 3600], ["6 h", 21600], ["1 d", 86400], ["all", 0]]);
const PAGE = 100;

/** @param {{session: import("../lib.js").Session, query: URLSearchParams}} props */
export default function Log({ session, query }) {
  const [form, setForm] = useState({
    // Without admin one may look at what one may subscribe to, and has to say what.
    filter: query.get("filter") ?? (session.admin ? "" : session.rights.subscribe[0] ?? ""),
    op: query.get("op") ?? "", dialect: query.get("dialect") ?? "", text: query.get("text") ?? "", id: query.get("id") ?? "", header: query.get("header") ?? "", offset: query.get("offset") ?? "",
  });
  const [asked, setAsked] = useState(form);
  const [span, setSpan] = useState({ seconds: 900, from: 0, to: 0 });
  const [rows, setRows] = useState(/** @type {any[]} */ ([]));
  const [cursor, setCursor] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  const [chosen, setChosen] = useState(/** @type {any} */ (null));
  const [turn, setTurn] = useState(0);
  const ends = () => (asked.offset ? { from: 0, to: 0 } : span.seconds ? { from: (Date.now() - span.seconds * 1000) * 1000, to: 0 } : span);
  const parameters = (/** @type {Record<string, any>} */ more = {}) => {
    const found = new URLSearchParams();
    const { from, to: end } = ends();
    if (from) found.set("time_from", String(Math.floor(from)));
    if (end) found.set("time_to", String(Math.floor(end)));
    for (const [name, value] of Object.entries({ ...asked, ...more })) if (value) found.set(name, String(value));
    return found;
  };
  // It shows what is looked for; `before` and `offset` are places, not kinds of rows.
  const histogram = useAnswer(() => ask(`/v1/histogram?${parameters({ buckets: 80, offset: "" })}`), [asked, span, turn]);
  const isAll = !Object.values({ ...asked, offset: "" }).some(Boolean);
  const load = async (/** @type {any} */ before) => {
    setBusy(true);
    try {
      const place = before ? { before: continued(before) } : {};
      const told = await ask(`/v1/rows?${parameters({ limit: PAGE, ...place })}`);
      setRows((/** @type {any[]} */ old) => (before ? [...old, ...told.rows] : told.rows));
      setCursor(told.more ? told.before : null);
      setError("");
    } catch (reason) {
      setError(reason instanceof Refused ? reason.message : String(reason));
    }
    setBusy(false);
  };
  useEffect(() => { setChosen(null); load(null); }, [asked, span, turn]);
  const set = (/** @type {string} */ name) => (/** @type {any} */ e) => setForm({ ...form, [name]: e.target.value });
  const told = histogram.value;
  const times = told ? told.counts.map((/** @type {number} */ _, /** @type {number} */ at) => (told.start + (at + 0.5) * told.width) / 1e6) : [];
  /** Less of the time, or more of it. @param {any} of @param {number} share */
  const zoom = (of, share) => {
    const length = of.stop - of.start;
    setSpan({ seconds: 0, from: Math.floor(of.start + share * length), to: of.stop });
  };
  const download = async (/** @type {string} */ kind) => {
    try {
      const response = await ask(`/v1/rows?${parameters({ limit: 100000, format: kind })}`, { raw: true });
      save(`wirelake-log.${kind}`, await response.blob(), response.headers.get("content-type") ?? "");
    } catch (reason) {
      tell(reason instanceof Error ? reason.message : String(reason));
    }
  };
  if (!session.log) return html`<div class="top"><h1>Log</h1></div><p>This broker keeps no log.</p>`;
  return html`<div class="top"><h1>Log</h1><p class="soft">${rows.length ? `${count(rows.length)} rows shown, the newest first` : ""}</p></div>
    <div class="cards"><${Card} title="When" wide aside=${html`<span class="row"><${Choice} name="Span" of=${SPANS} value=${span.from ? -1 : span.seconds} onChange=${(/** @type {number} */ seconds) => setSpan({ seconds, from: 0, to: 0 })} />
        ${span.from ? html`<span>${clock(span.from)} to ${clock(span.to)}</span>` : null}<button data-key="r" title="r" onClick=${() => setTurn(turn + 1)}>Refresh</button></span>`}>
      ${told ? html`<${Chart} height=${130} times=${times} series=${[{ name: "rows", colour: "accent", values: told.counts }]} bars=${true} label="Rows over time" format=${(/** @type {number} */ v) => count(v)}
        onSelect=${(/** @type {number} */ from, /** @type {number} */ end) => setSpan({ seconds: 0, from: Math.floor(from * 1e6), to: Math.ceil(end * 1e6) })} />
        <p class="soft">${count(told.counts.reduce((/** @type {number} */ a, /** @type {number} */ b) => a + b, 0))} ${isAll ? "rows of all kinds" : "rows that match"}${told.since > told.start ? html`, <span class="warn">counted back to ${when(told.since)}</span>` : ""}. Drag over a stretch to look at it alone<span class="nowrap">, or <button class="link" onClick=${() => zoom(told, 0.5)}>its later half</button></span>${span.from ? html`, <button class="link" onClick=${() => zoom(told, -1)}>twice as much</button>` : ""}.</p>` : html`<p class="soft">${histogram.error || "Loading."}</p>`}<//>
    <${Card} title="What" wide>
      <form class="form tight" onSubmit=${(/** @type {Event} */ e) => { e.preventDefault(); setAsked({ ...form }); }}>
        <label class="field">Address or filter<input class="mono" placeholder="house/#" value=${form.filter} onInput=${set("filter")} /></label>
        <label class="field">Text<input placeholder="in payload, address, id" value=${form.text} onInput=${set("text")} /></label>
        <label class="field">Op<select value=${form.op} onChange=${set("op")}><option value="">any</option>${OPS.map((one) => html`<option>${one}</option>`)}</select></label>
        <label class="field">Dialect<select value=${form.dialect} onChange=${set("dialect")}><option value="">any</option>${[...session.dialects, "http"].map((one) => html`<option>${one}</option>`)}</select></label>
        <label class="field">Id<input class="mono" value=${form.id} onInput=${set("id")} /></label>
        <label class="field">Header<input class="mono" placeholder="name=value" value=${form.header} onInput=${set("header")} /></label>
        <label class="field">Offset<input class="mono" placeholder="3:4711" pattern="[0-9]+:[0-9]+" title="partition:offset; rows from there back" value=${form.offset} onInput=${set("offset")} /></label>
        <span class="row"><button class="main">Find</button><button type="button" disabled=${isAll && !asked.offset} onClick=${() => { const none = Object.fromEntries(Object.keys(form).map((name) => [name, ""])); setForm(/** @type {any} */ (none)); setAsked(/** @type {any} */ (none)); }}>All</button></span></form>
      <div class="row"><span class="soft">Export what is found:</span><button onClick=${() => download("jsonl")}>JSON lines</button><button onClick=${() => download("csv")}>CSV</button>
        ${[...Array(told ? 1 : 0)].map(() => html`<${Arrow} filter=${asked.filter} from=${ends().from} />`)}</div><//>
    <${Card} title="Rows" wide=${!chosen}>
      ${error && html`<p class="bad" role="alert">${error}</p>`}
      <${Table} name="Rows" most=${2000} rows=${rows} id=${(/** @type {any} */ one) => `${one.partition}:${one.offset}`} selected=${chosen && `${chosen.partition}:${chosen.offset}`} onPick=${setChosen} empty=${busy ? "Looking." : "Nothing was found."} columns=${[
        { key: "time", title: "time", show: (/** @type {any} */ one) => html`<button class="link nowrap" title=${when(one.time)}>${clock(one.time)}</button>` },
        { key: "op", title: "op" },
        BY_DIALECT,
        { key: "address", title: "address", wide: true },
        ...(chosen ? [] : [{ key: "source", title: "source" }]),
        { key: "payload", title: "payload", wide: true, show: (/** @type {any} */ one) => html`<span class="mono"><${T} v=${(one.payload ?? (one.cbor !== undefined ? JSON.stringify(one.cbor) : `${one.size} bytes`)).slice(0, 160)} /></span>` },
        ...(chosen ? [] : [{ key: "offset", title: "offset", number: true, show: (/** @type {any} */ one) => `${one.partition}:${one.offset}` }]),
      ]} />
      ${cursor && html`<button disabled=${busy} onClick=${() => load(cursor)}>${busy ? "Looking" : "Older"}</button>`}<//>
    ${chosen && html`<${Card} title="Row" aside=${html`<a href=${to("message", { address: chosen.address, offset: `${chosen.partition}:${chosen.offset}` })}>its way</a> <a href=${to("inspector", { address: chosen.address, offset: `${chosen.partition}:${chosen.offset}` })}>inspect</a>`}><${Message} message=${chosen} /><//>`}
    </div>`;
}

/** Arrow comes from the log as it is stored, a stream for each partition. @param {{filter: string, from: number}} props */
function Arrow({ filter, from }) {
  const [parts, setParts] = useState(/** @type {any[] | null} */ (null));
  const show = () => ask("/v1/log").then((told) => setParts(told.partitions), (error) => tell(error.message));
  const query = new URLSearchParams({ ...(filter && { filter }), ...(from && { time_from: String(Math.floor(from)) }) });
  if (!parts) return html`<button onClick=${show}>Arrow</button>`;
  return parts.map((one) => html`<a class="button" download=${`wirelake-log-${one.partition}.arrows`} href=${`/v1/log/${one.partition}?${query}`}>Arrow, partition ${one.partition}</a>`);
}
