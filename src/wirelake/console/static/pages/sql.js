// SQL: a statement over the latest rows of the log, by DuckDB; and the same for the lake, by Spark.

import { ask, html, save, useState } from "../lib.js";
import { Card, Copy, T, Table } from "../parts.js";

const EXAMPLES = /** @type {[string, string][]} */ ([
  ["Busiest addresses", "SELECT address, count(*) AS messages, sum(octet_length(payload)) AS bytes\nFROM log WHERE op = 'publish'\nGROUP BY address ORDER BY messages DESC LIMIT 20"],
  ["Messages a minute by dialect", "SELECT time_bucket(INTERVAL 1 minute, timestamp) AS minute, dialect, count(*) AS messages\nFROM log GROUP BY ALL ORDER BY minute DESC, messages DESC"],
  ["Dead letters by reason", "SELECT address, headers['dead.reason'] AS reason, count(*) AS letters\nFROM log WHERE op = 'dead' GROUP BY ALL ORDER BY letters DESC"],
]);

export default function Sql() {
  const [sql, setSql] = useState(EXAMPLES[0][1]);
  const [hours, setHours] = useState(1);
  const [told, setTold] = useState(/** @type {any} */ (null));
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  const run = async () => {
    setBusy(true);
    try {
      setTold(await ask("/v1/sql", { method: "POST", body: { sql, hours } }));
      setError("");
    } catch (reason) {
      setError(reason instanceof Error ? reason.message : String(reason));
    }
    setBusy(false);
  };
  const rows = (told?.rows ?? []).map((/** @type {any[]} */ row) => Object.fromEntries(row.map((cell, at) => [`c${at}`, cell])));
  const lake = `wirelake lake sql "${sql.replace(/\bFROM\s+log\b/gi, "FROM messages").replaceAll('"', '\\"')}"`;
  const csv = () => [told.columns, ...told.rows].map((row) => row.map((/** @type {any} */ cell) => `"${String(cell ?? "").replaceAll('"', '""')}"`).join(",")).join("\r\n");
  return html`<div class="top"><h1>SQL</h1><p class="soft">DuckDB over the table <code>log</code>: the latest 200,000 rows of each partition.</p></div>
    <div class="cards"><${Card} title="Statement" wide aside=${html`<span class="row">${EXAMPLES.map(([name, text]) => html`<button onClick=${() => setSql(text)}>${name}</button>`)}</span>`}>
      <form onSubmit=${(/** @type {Event} */ e) => { e.preventDefault(); run(); }}>
        <textarea rows="6" aria-label="SQL" spellcheck=${false} value=${sql} onInput=${(/** @type {any} */ e) => setSql(e.target.value)} onKeyDown=${(/** @type {KeyboardEvent} */ e) => { if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) run(); }}></textarea>
        <div class="row"><button class="main" disabled=${busy}>${busy ? "Running" : "Run"}</button><span class="soft">Ctrl+Enter</span>
          <select aria-label="Hours" value=${hours} onChange=${(/** @type {any} */ e) => setHours(Number(e.target.value))}>${[1, 6, 24, 168].map((one) => html`<option value=${one}>last ${one} h</option>`)}</select></div></form>
      ${error && html`<p class="bad" role="alert"><${T} v=${error} /></p>`}
      <details><summary>The same on the lake, with Spark</summary><pre tabindex="0">${lake}</pre><${Copy} text=${lake} /></details><//>
      ${told && html`<${Card} title="Result" wide aside=${html`${told.rows.length} rows of ${told.of.toLocaleString("en")} read${told.more ? ", and more" : ""} <button onClick=${() => save("result.csv", csv(), "text/csv")}>CSV</button>`}>
        <${Table} key=${told.columns.join()} name="Result" rows=${rows} most=${1000} empty="No rows." columns=${told.columns.map((/** @type {string} */ title, /** @type {number} */ at) => ({ key: `c${at}`, title, number: typeof told.rows[0]?.[at] === "number" }))} /><//>`}
    </div>`;
}
