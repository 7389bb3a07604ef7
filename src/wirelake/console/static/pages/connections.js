// Connections: who is there, how much they send and get, what waits for them; and closing one.

import { ask, attempt, bytes, duration, html, perSecond, to, useLive, useState } from "../lib.js";
import { BY_DIALECT, Card, Confirm, Dialect, T, Table, columns } from "../parts.js";

/** @param {{session: import("../lib.js").Session, query: URLSearchParams}} props */
export default function Connections({ query }) {
  const { figures, problem } = useLive(["connections"]);
  const [search, setSearch] = useState(query.get("search") ?? "");
  const [chosen, setChosen] = useState(0);
  const [question, setQuestion] = useState(/** @type {any} */ (null));
  const all = figures?.connections?.connections ?? [];
  const wanted = search.toLowerCase();
  const rows = wanted ? all.filter((/** @type {any} */ one) => `${one.id} ${one.peer} ${one.dialect} ${one.rights} ${one.subscriptions.join(" ")}`.toLowerCase().includes(wanted)) : all;
  const shown = all.find((/** @type {any} */ one) => one.number === chosen);
  return html`<div class="top"><h1>Connections</h1><p class="soft">${figures ? `${figures.connections?.count ?? 0} in all` : ""}</p></div>
    ${problem && html`<p class="bad" role="alert">${problem}</p>`}
    <div class="cards"><${Card} title="All connections" wide aside=${html`<input aria-label="Search" placeholder="search" value=${search} onInput=${(/** @type {any} */ e) => setSearch(e.target.value)} />`}>
      <${Table} name="Connections" rows=${rows} sort=${query.get("sort") === "outbox" ? "-bytes_waiting" : "-rate_in"} id="number" selected=${chosen} onPick=${(/** @type {any} */ one) => setChosen(one.number)} empty=${figures ? "Nobody is connected." : "Loading."} columns=${columns(
        ["id", "client", (one) => html`<button class="link"><${T} v=${one.id || `(${one.number})`} /></button>`, "t"],
        BY_DIALECT,
        ["peer", "from"],
        ["rights", "token"],
        ["rate_in", "in", (one) => html`${perSecond(one.rate_in) || "0"}${one.bytes_rate_in ? html` <span class="soft">${bytes(one.bytes_rate_in)}/s</span>` : ""}`, "n"],
        ["rate_out", "out", (one) => html`${perSecond(one.rate_out) || "0"}${one.bytes_rate_out ? html` <span class="soft">${bytes(one.bytes_rate_out)}/s</span>` : ""}`, "n"],
        ["bytes_waiting", "outbox", (one) => html`<span class=${one.bytes_waiting > 1e6 ? "warn" : ""}>${bytes(one.bytes_waiting)}</span>`, "n"],
        { key: "subscriptions", title: "filters", number: true, value: (/** @type {any} */ one) => one.subscriptions.length, show: (/** @type {any} */ one) => one.subscriptions.length },
        ["age", "since", (one) => duration(one.age), "n"],
      )} /><//>
      ${shown && html`<${Card} title="Connection" aside=${html`<button class="danger" onClick=${() => setQuestion(shown)}>Close it</button>`}>
        <dl class="kv"><dt>client</dt><dd><${T} v=${shown.id || "–"} /></dd><dt>number</dt><dd>${shown.number}</dd><dt>dialect</dt><dd><${Dialect} of=${shown.dialect} /></dd><dt>from</dt><dd><${T} v=${shown.peer} /></dd>
          <dt>token</dt><dd><${T} v=${shown.rights} /></dd><dt>messages in, out</dt><dd>${shown.received.toLocaleString("en")}, ${shown.delivered.toLocaleString("en")}</dd><dt>bytes in, out</dt><dd>${bytes(shown.bytes_in)}, ${bytes(shown.bytes_out)}</dd>
          <dt>outbox</dt><dd>${bytes(shown.bytes_waiting)}</dd><dt>heard</dt><dd>${duration(shown.silent)} ago</dd><dt>waits</dt><dd>${shown.waits ? "yes, for a slow subscriber or the disk" : "no"}</dd></dl>
        <h3>Subscriptions</h3>${shown.subscriptions.length ? html`<ul>${shown.subscriptions.slice(0, 200).map((/** @type {string} */ one) => html`<li><a class="mono" href=${to("explore", { filter: one })}><${T} v=${one} /></a></li>`)}</ul>` : html`<p class="soft">None.</p>`}<//>`}
    </div>
    ${question && html`<${Confirm} title="Close the connection?" verb="Close" onClose=${() => setQuestion(null)} onDo=${() => attempt(() => ask(`/v1/connections/${question.number}`, { method: "DELETE" }), "Closed.")}>
      <p><${T} v=${question.id || question.peer} /> may connect again at once.</p><//>`}`;
}
