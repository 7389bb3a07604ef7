// Message: the way of one message, from the log, from a trace, or as it would be now.

import { ask, attempt, clock, findRow, findRows, html, to, useAnswer, useEffect, useState, when } from "../lib.js";
import { BY_DIALECT, Card, Message, Payload, T, Table, columns } from "../parts.js";

/** @param {{session: import("../lib.js").Session, query: URLSearchParams}} props */
export default function Way({ session, query }) {
  const [form, setForm] = useState({ address: query.get("address") ?? "", id: query.get("id") ?? "" });
  const address = query.get("address") ?? "";
  const id = query.get("id") ?? "";
  const time = Number(query.get("time") ?? 0);
  const offset = query.get("offset") ?? "";
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    location.hash = to("message", { address: form.address, ...(form.id && { id: form.id }) });
  };
  return html`<div class="top"><h1>Message</h1><p class="soft">Who sent it, where it went in which dialect, what was lost, and when.</p></div>
    <div class="cards"><${Card} title="Which message" wide><form class="form" onSubmit=${submit}>
        <label class="field">Address<input class="mono" required value=${form.address} onInput=${(/** @type {any} */ e) => setForm({ ...form, address: e.target.value })} /></label>
        <label class="field">Id or correlation id<input class="mono" value=${form.id} onInput=${(/** @type {any} */ e) => setForm({ ...form, id: e.target.value })} /></label>
        <span class="row"><button class="main">Show</button></span></form>
        <p class="soft">Or pick one in <a href=${to("explore")}>Explore</a> or in the <a href=${to("log")}>Log</a>.</p><//>
      ${address && html`<${Steps} key=${query.toString()} query=${query} address=${address} id=${id} time=${time} offset=${offset} session=${session} />`}
      ${session.admin && html`<${Trace} filter=${address} />`}
    </div>`;
}

/** @param {{query: URLSearchParams, address: string, id: string, time: number, offset: string, session: import("../lib.js").Session}} props */
function Steps({ query, address, id, time, offset, session }) {
  const parameters = new URLSearchParams({ filter: address, limit: id ? "100" : "20", ...(id ? { id } : time ? { time_from: String(time), time_to: String(time + 1) } : {}) });
  const rows = useAnswer(async () => {
    if (!session.log) return { rows: [] };
    if (!offset || id) return findRows(parameters);
    const row = await findRow(query);
    const known = row?.id || row?.correlation_id;
    if (!known) return { rows: row ? [row] : [] };
    return findRows(new URLSearchParams({ filter: address, id: known, limit: "100" }));
  }, [query.toString()]);
  const audience = useAnswer(() => (session.admin ? ask(`/v1/audience?${new URLSearchParams({ address })}`) : Promise.resolve(null)), [address]);
  const [message, setMessage] = useState(/** @type {any} */ (null));
  const translated = useAnswer(async () => {
    if (!message) return null;
    const keys = ["address", "payload", "base64", "id", "correlation_id", "source", "priority", "ttl", "headers"];
    return ask("/v1/translate", { method: "POST", body: Object.fromEntries(keys.filter((key) => message[key]).map((key) => [key, message[key]])) });
  }, [message]);
  const found = [...(rows.value?.rows ?? [])].reverse();
  useEffect(() => { if (found.length) setMessage(found.find((one) => `${one.partition}:${one.offset}` === offset) ?? found[0]); }, [rows.value]);
  const first = found[0]?.time;
  const lost = Object.fromEntries((translated.value?.translations ?? []).map((/** @type {any} */ one) => [one.dialect, one.refused ? `cannot be said: ${one.refused.replaceAll("_", " ")}` : one.lost.join(", ").replaceAll("_", " ") || "nothing"]));
  return html`<${Card} title="In the log" wide aside=${id ? html`all that has the id <${T} v=${id} />` : offset ? html`offset <${T} v=${offset} />` : time ? `received at ${when(time)}` : "the latest"}>
      ${rows.error && html`<p class="bad" role="alert">${rows.error}</p>`}
      <${Table} name="Steps" rows=${found} id=${(/** @type {any} */ one) => `${one.partition}:${one.offset}`} onPick=${setMessage} selected=${message && `${message.partition}:${message.offset}`} empty=${rows.value ? "The log has nothing of it." : "Loading."} columns=${columns(
        ["time", "time", (one) => html`<button class="link nowrap">${clock(one.time)}</button>`],
        ["after", "after", (one) => (id && one.time > first ? `${((one.time - first) / 1000).toFixed(1)} ms` : ""), "n"],
        ["op", "what", (one) => html`${NAMES[one.op] ?? one.op}${one.headers?.["$attempt"] > 1 ? `, attempt ${one.headers["$attempt"]}` : ""}${one.headers?.["dead.reason"] ? html`: <${T} v=${one.headers["dead.reason"]} />` : ""}`],
        ["source", "by"],
        ["target", "to"],
        BY_DIALECT,
        ["id", "id", (one) => html`<a href=${to("message", { address: one.address, id: one.id || one.correlation_id || "" })}><${T} v=${one.id || one.correlation_id} /></a>`],
      )} /><//>
    ${message && html`<${Card} title="The message"><${Message} message=${message} /><//>`}
    ${audience.value && html`<${Card} title="Who would get it now" aside=${`${audience.value.kind}${audience.value.captured ? ", captured in the log" : ", not captured"}`}>
      <${Table} name="Receivers" rows=${audience.value.who} id="number" empty="Nobody." columns=${columns(
        ["id", "client", (one) => html`<a href=${to("connections", { search: one.id || one.peer })}><${T} v=${one.id || one.peer} /></a>`, "t"],
        BY_DIALECT,
        ["lost", "lost in translation", (one) => lost[one.dialect] ?? ""],
      )} /><//>`}`;
}

/** @type {Record<string, string>} */
const NAMES = { publish: "published", enqueue: "put into the queue", deliver: "delivered", ack: "acknowledged", nack: "given back", dead: "became a dead letter", request: "asked", reply: "answered", error: "failed", set: "key written", del: "key removed", direct: "sent to a client" };

/** Real deliveries of a filter, for a while. @param {{filter: string}} props */
function Trace({ filter }) {
  const [wanted, setWanted] = useState(filter);
  const [told, setTold] = useState(/** @type {any} */ (null));
  const [chosen, setChosen] = useState(/** @type {any} */ (null));
  const look = () => ask("/v1/trace").then(setTold, () => {});
  useEffect(() => {
    look();
    const timer = setInterval(look, 1000);
    return () => clearInterval(timer);
  }, []);
  const begin = (/** @type {Event} */ event) => {
    event.preventDefault();
    attempt(() => ask("/v1/trace", { method: "PUT", body: { filter: wanted } }), "Tracing.").then(look);
  };
  const rows = [...(told?.messages ?? [])].reverse();
  return html`<${Card} title="Trace of a filter" wide aside=${told?.filter ? html`<${T} v=${told.filter} />: ${told.messages.length} messages; ${told.left > 0 ? `ends in ${Math.ceil(told.left)} s` : "has ended"}` : "what is really delivered, with the bytes; it ends by itself"}>
    <form class="row" onSubmit=${begin}><input class="grow mono" aria-label="Filter to trace" required placeholder="house/#" value=${wanted} onInput=${(/** @type {any} */ e) => setWanted(e.target.value)} />
      <button class="main">Trace for a minute</button><button type="button" disabled=${!(told?.left > 0)} onClick=${() => attempt(() => ask("/v1/trace", { method: "DELETE" }), "Ended.").then(look)}>End</button></form>
    <${Table} name="Traced messages" rows=${rows} most=${100} id="number" onPick=${setChosen} selected=${chosen?.number} empty="Nothing was traced." columns=${columns(
      ["time", "time", (one) => html`<button class="link nowrap">${clock(one.time)}</button>`],
      ["address", "address", null, "t"],
      ["source", "from", (one) => html`<${T} v=${one.source || one.peer} />`],
      BY_DIALECT,
      { key: "deliveries", title: "delivered to", number: true, value: (/** @type {any} */ one) => one.deliveries.length, show: (/** @type {any} */ one) => one.deliveries.length },
      ["size", "bytes", null, "n"],
    )} />
    ${chosen && html`<h3>Delivered to</h3><${Table} name="Deliveries" rows=${chosen.deliveries} empty="Nobody." columns=${columns(
      ["id", "client", (one) => html`<${T} v=${one.id || one.peer} />`, "t"],
      BY_DIALECT,
      ["size", "bytes", null, "n"],
      ["lost", "lost", (one) => (one.lost?.length ? html`<span class="warn">${one.lost.join(", ")}</span>` : one.size ? "nothing" : "cannot be said")],
      ["base64", "frame", (one) => one.base64 && html`<details><summary>show</summary><${Payload} message=${{ base64: one.base64 }} /></details>`, "t"],
    )} />`}<//>`;
}
