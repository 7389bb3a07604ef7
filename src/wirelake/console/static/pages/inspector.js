// Inspector: bytes and fields side by side, as our kernels read them; the same message elsewhere.

import { ask, bytes, findRow, html, payloadBytes, useEffect, useMemo, useState, visible } from "../lib.js";
import { BY_DIALECT, Card, Dialect, T, Table } from "../parts.js";

const EXAMPLE = "5|0|greet|hello4|0|t|abcd";
/** Bytes that are drawn. */
const DRAWN = 4096;

/** @param {{session: import("../lib.js").Session, query: URLSearchParams}} props */
export default function Inspector({ session, query }) {
  const [text, setText] = useState("");
  const [form, setForm] = useState("text");
  const [data, setData] = useState(/** @type {Uint8Array | null} */ (null));
  const [dialect, setDialect] = useState("");
  const [told, setTold] = useState(/** @type {any} */ (null));
  const [error, setError] = useState("");
  const [lit, setLit] = useState(/** @type {any} */ (null));
  const [chosen, setChosen] = useState(0);
  const [message, setMessage] = useState(/** @type {any} */ (null));
  const look = async (/** @type {Uint8Array} */ found, /** @type {string} */ wanted) => {
    setData(found);
    setLit(null);
    setChosen(0);
    try {
      setTold(await ask(`/v1/inspect${wanted ? `?dialect=${wanted}` : ""}`, { method: "POST", body: found }));
      setError("");
    } catch (reason) {
      setTold(null);
      setError(reason instanceof Error ? reason.message : String(reason));
    }
  };
  const read = (/** @type {Event} */ event) => {
    event.preventDefault();
    const found = parse(text, form);
    if (typeof found === "string") setError(found);
    else look(found, dialect);
  };
  const drop = async (/** @type {any} */ event) => {
    event.preventDefault();
    const file = (event.dataTransfer ?? event.target).files[0];
    if (file) look(new Uint8Array(await file.slice(0, 1 << 20).arrayBuffer()), dialect);
  };
  useEffect(() => {
    // A message that was picked elsewhere: found in the log, shown in every dialect.
    const hex = query.get("hex");
    if (hex) {
      setText(hex);
      setForm("hex");
      const found = parse(hex, "hex");
      if (typeof found !== "string") look(found, query.get("dialect") ?? "");
      return;
    }
    if (!query.get("offset") && !query.get("time")) return;
    findRow(query).then((found) => {
      if (!found) return setError("the log does not have it, or not any more");
      setMessage(found);
    }, (reason) => setError(reason.message));
  }, [query.toString()]);
  const frame = told?.messages[chosen];
  useEffect(() => { if (frame) setMessage(asMessage(frame)); }, [frame]);
  return html`<div class="top"><h1>Inspector</h1><p class="soft">Bytes of one direction of a connection, read by the broker's own kernels.</p></div>
    <div class="cards">
      <${Card} title="Bytes" wide>
        <form onSubmit=${read} onDragOver=${(/** @type {Event} */ e) => e.preventDefault()} onDrop=${drop}>
          <label class="field">Paste bytes, or drop a file here<textarea rows="3" value=${text} placeholder=${EXAMPLE} onInput=${(/** @type {any} */ e) => setText(e.target.value)}></textarea></label>
          <div class="row"><select aria-label="Form" value=${form} onChange=${(/** @type {any} */ e) => setForm(e.target.value)}><option value="text">as text</option><option value="hex">as hex</option><option value="base64">as base64</option></select>
            <select aria-label="Dialect" value=${dialect} onChange=${(/** @type {any} */ e) => setDialect(e.target.value)}><option value="">detect the dialect</option>${session.dialects.map((one) => html`<option>${one}</option>`)}</select>
            <button class="main">Inspect</button><button type="button" onClick=${() => { setText(EXAMPLE); setForm("text"); look(new TextEncoder().encode(EXAMPLE), ""); }}>An example</button>
            <label>or a file <input type="file" aria-label="A file" onChange=${drop} /></label></div>
        </form>
        ${error && html`<p class="bad" role="alert">${error}</p>`}
        ${told && html`<p><strong>${told.dialect ? html`<${Dialect} of=${told.dialect} />` : "No dialect was recognised"}</strong>, ${told.count} message${told.count === 1 ? "" : "s"} in ${bytes(told.size)}.
          ${told.error && html`<span class="bad" role="alert"> Byte ${told.error.offset}: <${T} v=${told.error.reason} />.</span>`}</p>`}<//>
      ${told && data && html`<${Card} title="Hex" aside="hover a byte, or a field">
          <${Hex} data=${data} told=${told} lit=${lit} setLit=${setLit} chosen=${chosen} setChosen=${setChosen} /><//>
        <${Card} title="Fields" aside=${told.messages.length > 1 ? html`<span class="row"><button disabled=${chosen === 0} onClick=${() => setChosen(chosen - 1)}>Before</button>${chosen + 1} of ${told.messages.length}<button disabled=${chosen + 1 >= told.messages.length} onClick=${() => setChosen(chosen + 1)}>Next</button></span>` : ""}>
          ${frame ? html`<p><strong>${frame.op}</strong> <span class="soft">bytes ${frame.at} to ${frame.at + frame.length - 1}</span></p>
            <div class="scroll"><table aria-label="Fields"><thead><tr><th scope="col">field</th><th scope="col">bytes</th><th scope="col">value</th></tr></thead><tbody>
            ${frame.fields.map((/** @type {any} */ one) => html`<tr class=${lit && lit.name === one.name ? "lit" : ""} tabindex="0" onMouseEnter=${() => setLit({ ...one })} onFocus=${() => setLit({ ...one })} onMouseLeave=${() => setLit(null)}>
              <td>${one.name.replace("_", " ")}</td><td class="nowrap soft">${one.at !== undefined ? `${one.at}, ${one.length} long` : "decoded"}</td><td class="t mono"><${T} v=${shown(one)} /></td></tr>`)}
            </tbody></table></div>` : html`<p class="soft">No whole message.</p>`}<//>`}
      ${message && html`<${Translations} message=${message} onPick=${(/** @type {any} */ one) => one.base64 && look(payloadBytes(one), one.dialect)} onFound=${(/** @type {any[]} */ found) => { if (!data) { const own = found.find((one) => one.dialect === message.dialect && one.base64) ?? found.find((one) => one.base64); if (own) look(payloadBytes(own), own.dialect); } }} />`}
    </div>`;
}

/** Bytes of a text, or what is wrong with it. @param {string} text @param {string} form @returns {Uint8Array | string} */
function parse(text, form) {
  if (form === "text") return new TextEncoder().encode(text);
  if (form === "hex") {
    const digits = text.replaceAll(/0x|[\s:,]/g, "");
    if (digits.length % 2 || /[^0-9a-fA-F]/.test(digits)) return "that is not hex";
    return Uint8Array.from(digits.match(/../g) ?? [], (pair) => parseInt(pair, 16));
  }
  try {
    return Uint8Array.from(atob(text.replaceAll(/\s/g, "")), (c) => c.charCodeAt(0));
  } catch {
    return "that is not base64";
  }
}

/** A field's value as text. @param {any} field */
function shown(field) {
  if (field.name === "payload") return field.value.payload ?? (field.value.cbor !== undefined ? JSON.stringify(field.value.cbor) : field.value.base64);
  return typeof field.value === "object" ? JSON.stringify(field.value) : field.value;
}

/** The message that fields make. @param {any} frame */
function asMessage(frame) {
  /** @type {any} */
  const message = { address: "", op: frame.op };
  for (const field of frame.fields) {
    if (field.name === "payload") Object.assign(message, field.value);
    else message[field.name] = field.value;
  }
  return message.address ? message : null;
}

/** @param {{data: Uint8Array, told: any, lit: any, setLit: (field: any) => void, chosen: number, setChosen: (at: number) => void}} props */
function Hex({ data, told, lit, setLit, chosen, setChosen }) {
  const owners = useMemo(() => {
    const found = new Map();
    told.messages.forEach((/** @type {any} */ frame, /** @type {number} */ at) => {
      for (let byte = frame.at; byte < frame.at + frame.length && byte < DRAWN; byte++) found.set(byte, { frame: at, field: null });
      for (const field of frame.fields) if (field.at !== undefined) for (let byte = field.at; byte < field.at + field.length && byte < DRAWN; byte++) found.set(byte, { frame: at, field });
    });
    return found;
  }, [told]);
  const lines = [];
  for (let at = 0; at < Math.min(data.length, DRAWN); at += 16) {
    const cells = [...data.slice(at, at + 16)].map((byte, place) => {
      const here = at + place;
      const owner = owners.get(here);
      const isLit = lit?.at !== undefined && here >= lit.at && here < lit.at + lit.length;
      const kind = told.error?.offset === here ? "err" : isLit ? "lit" : owner?.frame === chosen && owner.field ? "f" : "";
      const over = () => { if (owner) { if (owner.frame !== chosen) setChosen(owner.frame); setLit(owner.field); } };
      return { byte, kind, over };
    });
    lines.push(html`<span class="off">${at.toString(16).padStart(4, "0")}</span>
      <span class="nowrap" aria-hidden="true">${cells.map((one) => html`<i class=${one.kind} onMouseEnter=${one.over}>${one.byte.toString(16).padStart(2, "0")}</i>`)}</span>
      <span class="nowrap">${cells.map((one) => html`<i class=${one.kind} onMouseEnter=${one.over}>${one.byte > 32 && one.byte < 127 ? String.fromCharCode(one.byte) : one.byte === 32 ? "\u00a0" : "·"}</i>`)}</span>`);
  }
  return html`<div class="hex" tabindex="0" role="region" aria-label="Bytes" onMouseLeave=${() => setLit(null)}>${lines}</div>
    ${data.length > DRAWN && html`<p class="soft">The first ${DRAWN} of ${data.length} bytes are drawn.</p>`}`;
}

/** @param {{message: any, onPick: (translation: any) => void, onFound: (translations: any[]) => void}} props */
function Translations({ message, onPick, onFound }) {
  const [told, setTold] = useState(/** @type {any} */ (null));
  const [error, setError] = useState("");
  useEffect(() => {
    const { address, payload, base64, id, correlation_id, source, priority, ttl, headers } = message;
    const body = Object.fromEntries(Object.entries({ address, payload, base64, id, correlation_id, source, priority, ttl, headers }).filter(([, value]) => value));
    ask("/v1/translate", { method: "POST", body }).then((found) => { setTold(found.translations); setError(""); onFound(found.translations); }, (reason) => setError(reason.message));
  }, [message]);
  return html`<${Card} title="The same message in other dialects" wide aside=${html`as the broker would deliver it: <${T} v=${message.address} />. Pick one to see its bytes.`}>
    ${error && html`<p class="bad" role="alert">${error}</p>`}
    <${Table} name="Translations" id="dialect" onPick=${onPick} rows=${told ?? []} empty=${error ? "" : "Loading."} columns=${[
      BY_DIALECT,
      { key: "size", title: "bytes", number: true, show: (/** @type {any} */ one) => one.size ?? "–" },
      { key: "lost", title: "lost", show: (/** @type {any} */ one) => (one.refused ? html`<span class="bad">cannot be said: ${visible(one.refused).replaceAll("_", " ")}</span>` : one.lost?.length ? html`<span class="warn">${one.lost.map((/** @type {string} */ name) => name.replace("_", " ")).join(", ")}</span>` : html`<span class="good">nothing</span>`) },
      { key: "base64", title: "frame", wide: true, show: (/** @type {any} */ one) => one.base64 && html`<span class="mono">${printable(payloadBytes(one))}</span>` },
    ]} /><//>`;
}

/** Bytes as text where that can be read, else as hex. @param {Uint8Array} data */
function printable(data) {
  const text = [...data.slice(0, 160)].map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : `\\x${byte.toString(16).padStart(2, "0")}`)).join("");
  return data.length > 160 ? `${text}…` : text;
}
