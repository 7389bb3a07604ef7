// Spark: the queries that read the log, how far they are, and how far behind.

import { ask, attempt, count, html, useLive, useRef, useState, when } from "../lib.js";
import { Card, Chart, Confirm, T, Table } from "../parts.js";

/** @param {{session: import("../lib.js").Session}} props */
export default function Spark({ session }) {
  const { figures, problem } = useLive(["queries"]);
  const seen = useRef(/** @type {Record<string, {time: number, lag: number}[]>} */ ({}));
  const [question, setQuestion] = useState("");
  const part = figures?.queries;
  const rows = (part?.queries ?? []).map((/** @type {any} */ one) => ({ ...one, lag: Object.values(one.lags).reduce((/** @type {number} */ sum, /** @type {any} */ lag) => sum + lag, 0) }));
  const now = Date.now() / 1000;
  for (const one of rows) {
    const mine = (seen.current[one.query] ??= []);
    if (!mine.length || now - mine[mine.length - 1].time > 0.9) mine.push({ time: now, lag: one.lag });
    if (mine.length > 600) mine.shift();
  }
  return html`<div class="top"><h1>Spark</h1></div>
    ${(problem || part?.text) && html`<p class="bad" role="alert">${problem || part.text}</p>`}
    <div class="cards"><${Card} title="Queries" wide>
      <${Table} name="Queries" rows=${rows} id="query" empty=${part ? "No query has reported its progress." : "Loading."} columns=${[
        { key: "query", title: "query", wide: true },
        { key: "lag", title: "rows behind", number: true, show: (/** @type {any} */ one) => html`<span class=${one.lag > 1e6 ? "warn" : ""}>${count(one.lag)}</span>` },
        { key: "lags", title: "by partition", show: (/** @type {any} */ one) => Object.entries(one.lags).map(([partition, lag]) => `${partition}: ${count(lag)}`).join(", ") },
        { key: "time", title: "reported", show: (/** @type {any} */ one) => when(one.time * 1e6) },
        { key: "owner", title: "token" },
        ...(session.admin ? [{ key: "forget", title: "", show: (/** @type {any} */ one) => html`<button class="danger" onClick=${() => setQuestion(one.query)}>Forget</button>` }] : []),
      ]} />
      <p class="soft">A query reports its progress if it reads with the option <code>progress</code>, as <code>wirelake lake land</code> does.</p><//>
      ${rows.map((/** @type {any} */ one) => html`<${Card} key=${one.query} title=${one.query} aside="rows behind, since this page was opened">
        <${Chart} height=${120} times=${seen.current[one.query].map((p) => p.time)} series=${[{ name: "lag", colour: "accent", values: seen.current[one.query].map((p) => p.lag) }]} format=${count} label="Rows behind" /><//>`)}
    </div>
    ${question && html`<${Confirm} title="Forget the query?" verb="Forget" onClose=${() => setQuestion("")} onDo=${() => attempt(() => ask(`/v1/progress/${encodeURIComponent(question)}`, { method: "DELETE" }), "Forgotten.")}>
      <p>What <${T} v=${question} /> has read is forgotten here; the query itself goes on.</p><//>`}`;
}
