// Queues: depth and age, what is in them, and all that operators do to them.

import { ask, attempt, bytes, count, counted, duration, html, inPath, tell, to, useAnswer, useEffect, useLive, useState } from "../lib.js";
import { BY_DIALECT, Card, Chart, Confirm, Message, T, Table, Tile, columns } from "../parts.js";

const SETTINGS = /** @type {[string, string, string][]} */ ([
  ["ack_timeout", "Acknowledge within, s", "number"],
  ["max_deliveries", "Deliveries at most", "number"],
  ["max_messages", "Messages at most", "number"],
  ["max_bytes", "Bytes at most", "number"],
  ["dedup_window", "Ids are known for, s", "number"],
]);

/** @param {{session: import("../lib.js").Session, query: URLSearchParams}} props */
export default function Queues({ session, query }) {
  const { figures, problem } = useLive(["queues"]);
  const [make, setMake] = useState(false);
  const name = query.get("name") ?? "";
  const rows = figures?.queues?.queues ?? [];
  const chosen = rows.find((/** @type {any} */ one) => one.name === name);
  return html`<div class="top"><h1>Queues</h1><span class="grow"></span>
      ${session.admin && html`<button class="main" onClick=${() => setMake(!make)} aria-expanded=${String(make)}>New queue</button>`}</div>
    ${problem && html`<p class="bad" role="alert">${problem}</p>`}
    ${make && html`<${Card} title="New queue"><${Settings} queue=${null} onDone=${(/** @type {string} */ made) => { setMake(false); location.hash = to("queues", { name: made }); }} /><//><br />`}
    <div class="cards">
      <${Card} title="All queues" wide aside=${figures ? `${figures.queues?.count ?? 0}` : ""}>
        <${Table} name="Queues" sort="-messages" rows=${rows} selected=${name} id="name" onPick=${(/** @type {any} */ one) => (location.hash = to("queues", { name: one.name }))}
          empty=${figures ? "There are no queues that this token may consume." : "Loading."} columns=${columns(
            ["name", "queue", (one) => html`<a href=${to("queues", { name: one.name })}><${T} v=${one.name} /></a>`, "t"],
            ["mode", "mode"],
            ...["messages", "ready", "held", "delayed"].map((key) => ({ key, title: key, number: true, show: (/** @type {any} */ one) => count(one[key]) })),
            ["bytes", "bytes", (one) => bytes(one.bytes), "n"],
            ["consumers", "consumers", null, "n"],
            ["age", "age", (one) => (one.age ? duration(one.age) : "–"), "n"],
          )} /><//>
      ${name && (chosen ? html`<${Queue} key=${name} queue=${chosen} session=${session} />` : figures && html`<${Card} title=${"Queue"}><p>There is no queue <${T} v=${name} />.</p><//>`)}
    </div>`;
}

/** @param {{queue: any, session: import("../lib.js").Session}} props */
function Queue({ queue, session }) {
  const path = `/v1/queues/${inPath(queue.name)}`;
  const depths = useAnswer(() => ask(`${path}/depths`), [queue.name]);
  const [most, setMost] = useState(20);
  const peek = useAnswer(() => ask(`${path}/messages?count=${most}`), [queue.name, most]);
  const [picked, setPicked] = useState(/** @type {Set<number>} */ (new Set()));
  const [shown, setShown] = useState(/** @type {any} */ (null));
  const [question, setQuestion] = useState(/** @type {any} */ (null));
  const [target, setTarget] = useState("");
  useEffect(() => {
    const timer = setInterval(depths.reload, 10_000);
    return () => clearInterval(timer);
  }, []);
  useEffect(() => { peek.reload(); }, [queue.messages]);
  const consumers = useAnswer(() => (session.admin ? ask(`/v1/audience?${new URLSearchParams({ address: queue.name })}`) : Promise.resolve(null)), [queue.name, queue.consumers]);
  const isDead = queue.name.endsWith("/$dead");
  const home = isDead ? queue.name.slice(0, -"/$dead".length) : "";
  const messages = peek.value?.messages ?? [];
  const every = depths.value?.every ?? 10;
  const now = Math.floor(Date.now() / 1000);
  const times = (depths.value?.messages ?? []).map((/** @type {number} */ _, /** @type {number} */ at, /** @type {number[]} */ all) => now - (all.length - 1 - at) * every);
  const move = (/** @type {string} */ to_, /** @type {number[]} */ only) => attempt(async () => {
    let moved = 0;
    const parts = only.length ? Array.from({ length: Math.ceil(only.length / 90) }, (_, at) => only.slice(90 * at, 90 * at + 90)) : [[]];
    for (const part of parts) {
      const told = await ask(`${path}/move?${new URLSearchParams([...(to_ ? [["to", to_]] : []), ...part.map((one) => ["sequence", String(one)])])}`, { method: "POST" });
      moved += told.moved;
    }
    tell(`${counted(moved, "message was", "messages were")} moved.`);
    setPicked(new Set());
    peek.reload();
  });
  const chosen = [...picked];
  return html`
    <${Card} title=${queue.name} wide aside=${isDead ? html`dead letters of <a href=${to("queues", { name: home })}><${T} v=${home} /></a>` : html`<a href=${to("log", { filter: queue.name })}>in the log</a>`}>
      <div class="tiles"><${Tile} name="messages" value=${count(queue.messages)} /><${Tile} name="ready" value=${count(queue.ready)} /><${Tile} name="held" value=${count(queue.held)} />
        <${Tile} name="consumers" value=${queue.consumers} /><${Tile} name="oldest" value=${queue.age ? duration(queue.age) : "–"} /></div>
      ${times.length ? html`<div class="pair"><div><h3>Messages in the last hour</h3><${Chart} height=${120} times=${times} series=${[{ name: "messages", colour: "accent", values: depths.value.messages }]} label="Messages in the queue" /></div>
        <div><h3>Age of the next message, s</h3><${Chart} height=${120} times=${times} series=${[{ name: "age", colour: "warn", values: depths.value.age }]} label="Age in seconds" /></div></div>` : html`<p class="soft">Depth and age are drawn after ten seconds.</p>`}<//>
    <${Card} title="What comes next" aside=${html`not taken by looking <button data-key="r" title="r" onClick=${peek.reload}>Refresh</button>`}>
      ${peek.error && html`<p class="bad">${peek.error}</p>`}
      <${Table} name="Messages" rows=${messages} id="sequence" onPick=${setShown} selected=${shown?.sequence} empty="Nothing is ready." columns=${columns(
        ...(session.admin ? [{ key: "pick", title: "", name: "chosen", show: (/** @type {any} */ one) => html`<input type="checkbox" aria-label=${`Choose message ${one.sequence}`} checked=${picked.has(one.sequence)}
            onClick=${(/** @type {Event} */ e) => e.stopPropagation()} onChange=${() => { const next = new Set(picked); next.delete(one.sequence) || next.add(one.sequence); setPicked(next); }} />` }] : []),
        ["sequence", "number", null, "n"],
        ["attempts", "attempts", null, "n"],
        ...(isDead ? [{ key: "reason", title: "reason", show: (/** @type {any} */ one) => html`<${T} v=${one.headers?.["dead.reason"]} />` }] : []),
        ["payload", "payload", (one) => html`<span class="mono"><${T} v=${(one.payload ?? one.base64 ?? "").slice(0, 120)} /></span>`, "t"],
      )} />
      ${messages.length >= most && most < 1000 && html`<button onClick=${() => setMost(Math.min(1000, most * 5))}>More</button>`}<//>
    ${shown && html`<${Card} title="Message"><${Message} message=${{ ...shown, address: queue.name }} /><//>`}
    ${consumers.value && html`<${Card} title="Consumers" aside=${`${consumers.value.count}`}><${Table} name="Consumers" rows=${consumers.value.who} id="number" empty="Nobody consumes it." columns=${columns(
      ["id", "client", (one) => html`<a href=${to("connections", { search: one.id || one.peer })}><${T} v=${one.id || one.peer} /></a>`, "t"],
      BY_DIALECT,
      ["delivered", "delivered", (one) => count(one.delivered), "n"],
    )} /><//>`}
    ${session.admin && html`<${Card} title="Do">
      ${isDead && html`<div class="row"><button class="main" disabled=${!queue.ready} onClick=${() => move("", [])}>Send all back to <${T} v=${home} /></button>
        <button disabled=${!chosen.length} onClick=${() => move("", chosen)}>Send ${chosen.length || "chosen"} back</button></div>`}
      <form class="row" onSubmit=${(/** @type {Event} */ e) => { e.preventDefault(); move(target, chosen); }}>
        <input class="grow mono" aria-label="Move to" placeholder="another queue" required value=${target} onInput=${(/** @type {any} */ e) => setTarget(e.target.value)} />
        <button disabled=${!queue.ready}>Move ${chosen.length ? `${chosen.length} chosen` : "all"}</button></form>
      <div class="row"><button class="danger" onClick=${() => setQuestion({ title: "Purge the queue?", verb: "Purge", text: `All ${count(queue.messages - queue.held)} messages that nobody holds are thrown away.`, work: () => ask(`${path}/purge`, { method: "POST" }), done: "Purged." })}>Purge</button>
        <button class="danger" onClick=${() => setQuestion({ title: "Remove the queue?", verb: "Remove", text: "The queue and its messages are deleted. Messages published there go to a topic again.", work: () => ask(path, { method: "DELETE" }), done: "Removed." })}>Remove</button></div><//>
    <${Card} title="Settings"><${Settings} queue=${queue} onDone=${() => {}} /><//>`}
    ${question && html`<${Confirm} title=${question.title} verb=${question.verb} onClose=${() => setQuestion(null)} onDo=${() => attempt(question.work, question.done).then(peek.reload)}><p>${question.text}</p><//>`}`;
}

/** @param {{queue: any, onDone: (name: string) => void}} props */
function Settings({ queue, onDone }) {
  const [name, setName] = useState("");
  const [values, setValues] = useState(/** @type {Record<string, any>} */ ({ mode: queue?.mode ?? "round-robin", keep_expired: queue?.keep_expired ?? false }));
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const wanted = queue?.name ?? name;
    const body = Object.fromEntries(Object.entries(values).filter(([, value]) => value !== "").map(([key, value]) => [key, typeof value === "string" && key !== "mode" ? Number(value) : value]));
    const told = await attempt(() => ask(`/v1/queues/${inPath(wanted)}`, { method: "PUT", body }), queue ? "Changed." : "Made.");
    if (told) onDone(wanted);
  };
  return html`<form onSubmit=${submit}><div class="form">
      ${!queue && html`<label class="field">Name<input class="mono" required value=${name} onInput=${(/** @type {any} */ e) => setName(e.target.value)} /></label>`}
      <label class="field">Mode<select value=${values.mode} onChange=${(/** @type {any} */ e) => setValues({ ...values, mode: e.target.value })}>
        <option value="round-robin">one consumer at a time</option><option value="push">every consumer</option><option value="pull">only on request</option></select></label>
      ${SETTINGS.map(([key, title, type]) => html`<label class="field">${title}<input type=${type} step="any" min="0" placeholder=${queue?.[key] ?? "default"} value=${values[key] ?? ""} onInput=${(/** @type {any} */ e) => setValues({ ...values, [key]: e.target.value })} /></label>`)}
      <label><input type="checkbox" checked=${values.keep_expired} onChange=${(/** @type {any} */ e) => setValues({ ...values, keep_expired: e.target.checked })} /> expired messages become dead letters</label>
    </div><div class="row"><button class="main">${queue ? "Change" : "Make"}</button></div></form>`;
}
