// Chat: the rooms of `wirelake chat`, with what the log has of them and each member's dialect.

import { ask, attempt, clock, findRows, html, inPath, to, useEffect, useLive, useRef, useState, visible } from "../lib.js";
import { Card, Dialect, Dot, T } from "../parts.js";

const ASIDE = "/$chat";
const TALK = ["say", "me"];
const KEPT = 1000;
/** What separates the lines of a text. */
const BREAK = "\u2028";

/** A text in its lines. @param {{v: string}} props */
const Lines = ({ v }) => v.split(BREAK).map((line, number) => html`${number > 0 && html`<br />`}<${T} v=${line} />`);

/** What a message of a room says; talk of an unknown sender where it is not in the form of the chat. @param {any} message */
function read(message) {
  const parts = (message.payload ?? "").split(" ");
  if (parts.length < 6 || parts[0] !== "chat/1") return { kind: "say", name: "", id: "", text: message.payload ?? `${message.size} bytes` };
  const [, kind, , name, id] = parts;
  return { kind, name, id, text: parts.slice(5).join(" ") };
}

/** @param {{session: import("../lib.js").Session, query: URLSearchParams}} props */
export default function Chat({ session, query }) {
  const room = query.get("room") ?? "lobby";
  const [lines, setLines] = useState(/** @type {any[]} */ ([]));
  const [members, setMembers] = useState(/** @type {Record<string, any>} */ ({}));
  const [text, setText] = useState("");
  const [name, setName] = useState(sessionStorage.getItem("chat-name") ?? "console");
  const [wanted, setWanted] = useState("");
  const me = useRef(Math.random().toString(16).slice(2, 10));
  const sent = useRef(0);
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const add = (/** @type {any[]} */ found, /** @type {boolean} */ isOld) => {
    for (const message of found) {
      const note = read(message);
      if (message.address.endsWith(ASIDE)) {
        const member = note.id.split(".")[0];
        if (note.kind === "leave") setMembers((/** @type {any} */ old) => Object.fromEntries(Object.entries(old).filter(([id]) => id !== member)));
        else if (["here", "join"].includes(note.kind) && !isOld) setMembers((/** @type {any} */ old) => ({ ...old, [member]: { name: note.name, dialect: message.dialect, until: Date.now() + 30_000 } }));
      } else if (TALK.includes(note.kind)) {
        setLines((/** @type {any[]} */ old) => (note.id && old.some((one) => one.id === note.id) ? old : [...old, { ...note, time: message.time, dialect: message.dialect }].sort((a, b) => a.time - b.time).slice(-KEPT)));
      }
    }
  };
  useEffect(() => {
    setLines([]);
    setMembers({});
    if (session.log) findRows(new URLSearchParams({ filter: room, op: "publish", limit: "200" })).then((told) => add(told.rows, true), () => {});
  }, [room]);
  const { figures, problem } = useLive(["addresses"], { filters: [room, room + ASIDE], onMessages: (told) => add(told.messages, false) });
  useEffect(() => box.current?.scrollTo(0, box.current.scrollHeight), [lines]);
  const rooms = [...new Set(["lobby", room, ...(figures?.addresses?.topics ?? []).map((/** @type {any} */ one) => one.filter).filter((/** @type {string} */ one) => one.endsWith(ASIDE)).map((/** @type {string} */ one) => one.slice(0, -ASIDE.length))])].sort();
  const here = Object.values(members).filter((one) => one.until > Date.now());
  const may = session.open || session.admin;
  const say = (/** @type {Event} */ event) => {
    event.preventDefault();
    sessionStorage.setItem("chat-name", name);
    sent.current += 1;
    const body = `chat/1 say ${room} ${name.replaceAll(/[\s:,@]/g, "")} ${me.current}.${sent.current} ${text}`;
    attempt(() => ask(`/v1/publish/${inPath(room)}`, { method: "POST", body })).then(() => setText(""));
  };
  return html`<div class="top"><h1>Chat</h1><p class="soft">The rooms of <code>wirelake chat</code>, in whatever dialect people speak.</p></div>
    ${problem && html`<p class="bad" role="alert">${problem}</p>`}
    <div class="split"><div class="cards">
      <${Card} title="Rooms"><ul class="plain">${rooms.map((one) => html`<li><a href=${to("chat", { room: one })} aria-current=${one === room ? "true" : undefined}><${T} v=${one} /></a></li>`)}</ul>
        <form class="row" onSubmit=${(/** @type {Event} */ e) => { e.preventDefault(); location.hash = to("chat", { room: wanted }); setWanted(""); }}><input class="grow" aria-label="Another room" placeholder="another room" required value=${wanted} onInput=${(/** @type {any} */ e) => setWanted(e.target.value)} /><button>Go</button></form><//>
      <${Card} title="Members" aside=${`${here.length}`}>${here.length ? html`<ul class="plain">${here.map((one) => html`<li><${T} v=${one.name} /> <span class="soft"><${Dialect} of=${one.dialect} /></span></li>`)}</ul>` : html`<p class="soft">Nobody else is here.</p>`}<//></div>
      <${Card} title=${`# ${visible(room)}`}>
        <div class="chat" ref=${box} tabindex="0" role="log" aria-label="What was said">${lines.map((one) => html`<div class="say" key=${one.id || `${one.time} ${one.text}`}><span class="soft">${clock(one.time)}</span> <${Dot} of=${one.dialect} />
          ${one.kind === "me" ? html`<em>* <${T} v=${one.name} /> <${Lines} v=${one.text} /></em>` : html`<strong><${T} v=${one.name || "somebody"} /></strong> <${Lines} v=${one.text} />`}</div>`)}
          ${!lines.length && html`<p class="soft">Nothing was said here yet.</p>`}</div>
        ${may ? html`<form class="row" onSubmit=${say}><input aria-label="Your name" size="10" required value=${name} onInput=${(/** @type {any} */ e) => setName(e.target.value)} />
          <input class="grow" aria-label="Message" placeholder="say something" required maxlength="800" value=${text} onInput=${(/** @type {any} */ e) => setText(e.target.value)} /><button class="main">Say</button></form>` : html`<p class="soft">This token only listens here.</p>`}<//>
    </div>`;
}
