// Overview: is all well, what passes, and what needs somebody.

import { ask, bytes, count, counted, duration, html, perSecond, short, to, useEffect, useLive, useState, visible, when } from "../lib.js";
import { BY_DIALECT, Card, Chart, Choice, Legend, T, Table, Tile, columns } from "../parts.js";

const SPANS = /** @type {[string, number][]} */ ([["5 min", 300], ["20 min", 1200], ["1 h", 3600]]);

/** @param {{session: import("../lib.js").Session}} props */
export default function Overview({ session }) {
  const { figures, problem } = useLive(["overview", ...(session.admin ? [] : ["queues"])]);
  const now = figures?.overview;
  if (problem) return html`<p class="bad" role="alert">${problem}</p>`;
  if (!now) return html`<p class="soft">Loading.</p>`;
  return html`<div class="top"><h1>Overview</h1><p class="grow">${sentence(now)}</p></div>
    ${session.admin ? html`<${Figures} now=${now} />` : html`<${Small} queues=${figures.queues?.queues ?? []} />`}`;
}

/** Health in one sentence. @param {any} now */
function sentence(now) {
  if (now.state === "trouble") return html`<strong class="bad">Nothing can be written: ${visible(now.trouble || "see the log of the broker")}.</strong>`;
  if (now.state === "behind") return html`<strong class="warn">The disk is behind by ${bytes(now.backlog)}, so publishers wait.</strong>`;
  const wrong = problems(now);
  if (wrong.length) return html`<strong class="warn">The broker stores what it accepts; ${wrong.length === 1 ? "one thing needs" : `${wrong.length} things need`} attention.</strong>`;
  return html`<strong class="good">All is well: the broker stores what it accepts.</strong>`;
}

/** What is wrong now, each with the page where it is mended. @param {any} now */
function problems(now) {
  /** @type {{text: string, fix: string, href: string}[]} */
  const found = [];
  if (now.trouble) found.push({ text: `Nothing can be written: ${now.trouble}`, fix: "Requests that need the disk are refused until it works again.", href: to("trouble") });
  if (now.free && now.free < Math.min(0.05 * now.disk_size, 2 * 2 ** 30)) found.push({ text: `The disk has ${bytes(now.free)} left`, fix: "Make room, or let the log keep less.", href: to("log") });
  if (now.waiting) found.push({ text: `${counted(now.waiting, "client waits", "clients wait")} for a slow subscriber or for the disk`, fix: "Close the one whose outbox is full.", href: to("connections", { sort: "outbox" }) });
  if (now.outbox > now.outbox_most / 2) found.push({ text: `${bytes(now.outbox)} wait for slow subscribers`, fix: "See whose outbox it is.", href: to("connections", { sort: "outbox" }) });
  for (const queue of now.queues ?? []) {
    const href = to("queues", { name: queue.name });
    if (queue.name.endsWith("/$dead") && queue.messages) found.push({ text: `${counted(queue.messages, "dead letter")} in ${queue.name}`, fix: "See why, and send them back.", href });
    else if (queue.ready && !queue.consumers && queue.age > 60) found.push({ text: `${queue.name} has messages and no consumer`, fix: `The oldest has waited for ${duration(queue.age)}.`, href });
    else if (queue.max_messages && queue.messages > 0.9 * queue.max_messages) found.push({ text: `${queue.name} is nearly full`, fix: `${count(queue.messages)} of ${count(queue.max_messages)} messages.`, href });
  }
  for (const [name, lag] of Object.entries(now.queries ?? {})) {
    if (lag > 1e6) found.push({ text: `The query ${name} is ${short(lag)} rows behind`, fix: "", href: to("spark") });
  }
  return found;
}

/** @param {{now: any}} props */
function Figures({ now }) {
  const [span, setSpan] = useState(300);
  const [unit, setUnit] = useState("messages");
  const history = useRates(span, now);
  const sum = (/** @type {string} */ name) => Object.values(now.rates).reduce((all, /** @type {any} */ one) => all + one[name], 0);
  const sessions = Object.values(now.sessions).reduce((all, one) => all + one, 0);
  const lag = Object.values(now.queries).reduce((most, one) => Math.max(most, one), 0);
  const wrong = problems(now);
  const inBytes = unit === "bytes";
  const format = inBytes ? (/** @type {number} */ value) => `${bytes(value)}/s` : (/** @type {number} */ value) => `${short(value)}/s`;
  const series = (/** @type {string} */ what) => Object.entries(history.dialects)
    .filter(([, one]) => one[what].some((/** @type {number} */ value) => value))
    .map(([name, one]) => ({ name, values: one[what] }));
  /** All dialects together, in the last minutes. @param {string} what */
  const past = (what) => Object.values(history.dialects).reduce((/** @type {number[]} */ all, one) => one[what].slice(-120).map((/** @type {number} */ value, /** @type {number} */ at) => value + (all[at] ?? 0)), []);
  const [into, out] = inBytes ? ["bytes_in", "bytes_out"] : ["received", "delivered"];
  const shown = { in: series(into), out: series(out) };
  const named = [...new Map([...shown.in, ...shown.out].map((one) => [one.name, one])).values()].sort((a, b) => (a.name < b.name ? -1 : 1));
  return html`<div class="tiles eight">
      <${Tile} name="messages in" value=${perSecond(sum("received")) || "0/s"} href=${to("explore")} past=${past("received")} />
      <${Tile} name="messages out" value=${perSecond(sum("delivered")) || "0/s"} href=${to("flow")} past=${past("delivered")} />
      <${Tile} name="bytes in" value=${`${bytes(sum("bytes_in"))}/s`} past=${past("bytes_in")} />
      <${Tile} name="bytes out" value=${`${bytes(sum("bytes_out"))}/s`} past=${past("bytes_out")} />
      <${Tile} name="connections" value=${count(sessions)} href=${to("connections")} more=${counted(now.subscriptions, "filter")} />
      <${Tile} name="in queues" value=${count(now.queued)} href=${to("queues")} more=${counted(now.queue_count, "queue")} />
      <${Tile} name="log on disk" value=${bytes(now.disk)} href=${to("log")} more=${now.free ? `${bytes(now.free)} free` : `${short(now.rows)} rows`} />
      <${Tile} name="rows of lag" value=${short(lag)} href=${to("spark")} more=${counted(Object.keys(now.queries).length, "query", "queries")} />
    </div>
    <div class="cards">
      ${wrong.length ? html`<${Card} title="What is wrong now" wide kind="alarm"><ul class="plain">${wrong.map((one) => html`<li><a href=${one.href}><${T} v=${one.text} /></a> <span class="soft">${one.fix}</span></li>`)}</ul><//>` : null}
      <${Card} wide title="Rates by dialect" aside=${html`<span class="row">
          <${Choice} name="Unit" of=${["messages", "bytes"]} value=${unit} onChange=${setUnit} />
          <${Choice} name="Span" of=${SPANS} value=${span} onChange=${setSpan} />
        </span>`}>
        <div class="pair">
          <div><h3>In, ${format(sum(into))}</h3><${Chart} times=${history.times} series=${shown.in} format=${format} label="Rates in by dialect" height=${200} /></div>
          <div><h3>Out, ${format(sum(out))}</h3><${Chart} times=${history.times} series=${shown.out} format=${format} label="Rates out by dialect" height=${200} /></div>
        </div>
        <${Legend} series=${named} /><//>
      <${Card} title="Top talkers" aside=${html`<a href=${to("connections")}>all connections</a>`}>
        <${Table} name="Top talkers" id="number" rows=${now.talkers} empty="Nobody is connected." columns=${columns(
          ["id", "client", (one) => html`<${T} v=${one.id || one.peer} />`, "t"],
          BY_DIALECT,
          ["rate_in", "in", (one) => perSecond(one.rate_in) || "0", "n"],
          ["rate_out", "out", (one) => perSecond(one.rate_out) || "0", "n"],
        )} /><//>
      <${Card} title="Longest queues" aside=${html`<a href=${to("queues")}>all ${now.queue_count}</a>`}>
        <${Queues} rows=${now.queues} /><//>
      <${Card} title="Clients by dialect">
        <${Table} name="Clients by dialect" sort="-count" rows=${Object.entries(now.sessions).map(([dialect, sum]) => ({ dialect, count: sum, ...(now.rates[dialect] ?? {}) }))} columns=${columns(
          BY_DIALECT,
          ["count", "clients", null, "n"],
          ["received", "in", (one) => perSecond(one.received) || "0", "n"],
          ["delivered", "out", (one) => perSecond(one.delivered) || "0", "n"],
        )} /><//>
      <${Card} title="Latest events" aside=${html`<a href=${to("trouble")}>all</a>`}>
        ${now.events.length ? [...now.events].reverse().map((one) => html`<p><span class="soft">${when(one.time)}</span> <strong>${one.event.replaceAll("_", " ")}</strong> <${T} v=${one.text} /></p>`) : html`<p class="soft">None so far.</p>`}<//>
    </div>`;
}

/** The rates of the last seconds, asked for once and then kept up to date. @param {number} span @param {any} now */
function useRates(span, now) {
  const [history, setHistory] = useState(/** @type {{second: number, dialects: any}} */ ({ second: 0, dialects: {} }));
  useEffect(() => {
    let current = true;
    ask(`/v1/rates?seconds=${span}`).then((told) => current && setHistory(told), () => {});
    return () => {
      current = false;
    };
  }, [span]);
  useEffect(() => {
    if (!now.second || now.second <= history.second) return;
    if (now.second - history.second > 5 && history.second) {
      ask(`/v1/rates?seconds=${span}`).then(setHistory, () => {});
      return;
    }
    const dialects = { ...history.dialects };
    for (const name of new Set([...Object.keys(dialects), ...Object.keys(now.rates)])) {
      const old = dialects[name] ?? {};
      dialects[name] = Object.fromEntries(
        ["received", "delivered", "bytes_in", "bytes_out"].map((what) => [
          what,
          [...(old[what] ?? new Array(span).fill(0)).slice(1 - span), now.rates[name]?.[what] ?? 0],
        ]),
      );
    }
    setHistory({ second: now.second, dialects });
  }, [now.second]);
  const times = Array.from({ length: span }, (_, at) => history.second - span + 1 + at);
  return { times, dialects: history.dialects };
}

/** @param {{rows: any[]}} props */
function Queues({ rows }) {
  return html`<${Table} name="Longest queues" rows=${rows} id="name" empty="There are no queues." columns=${columns(
    ["name", "queue", (one) => html`<a href=${to("queues", { name: one.name })}><${T} v=${one.name} /></a>`, "t"],
    ["messages", "messages", (one) => count(one.messages), "n"],
    ["consumers", "consumers", null, "n"],
    ["age", "age", (one) => (one.age ? duration(one.age) : "–"), "n"],
  )} />`;
}

/** @param {{queues: any[]}} props */
function Small({ queues }) {
  return html`<div class="cards"><${Card} title="Queues that this token may consume"><${Queues} rows=${queues} /><//>
    <${Card} title="What this token sees"><p>Rates and connections are for tokens with the right <code>admin</code>. The pages on the left show what this token may read.</p><//></div>`;
}
