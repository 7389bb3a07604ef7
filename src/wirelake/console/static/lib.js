// What every page uses: Preact, requests to the broker, one live stream, and how values are shown.

import { Fragment, h, render } from "./vendor/preact.js";
import * as hooks from "./vendor/hooks.js";
import htm from "./vendor/htm.js";

/** @type {(strings: TemplateStringsArray, ...values: any[]) => any} */
export const html = htm.bind(h);
export { Fragment, h, render };
/** @type {typeof import("preact/hooks")} */
const { useEffect, useLayoutEffect, useMemo, useRef, useState } = /** @type {any} */ (hooks);
export { useEffect, useLayoutEffect, useMemo, useRef, useState };

/**
 * Who is logged in, as `/v1/session` tells it.
 * @typedef {{name: string, admin: boolean, open: boolean, stranger: boolean, csrf: string,
 *   version: string, dialects: string[], log: boolean, sql: boolean,
 *   about: Record<string, {family: string, colour: string, port: number}>,
 *   rights: Record<string, string[]>}} Session
 */

/** @type {{session: Session | null, onLogout: () => void}} */
export const state = { session: null, onLogout: () => {} };

/** A refusal of the broker: its code, and a sentence for people. */
export class Refused extends Error {
  /** @param {number} status @param {string} code @param {string} text */
  constructor(status, code, text) {
    super(text);
    this.status = status;
    this.code = code;
  }
}

/**
 * Ask the broker for something; an object as body is sent as JSON.
 * @param {string} path
 * @param {{method?: string, body?: any, headers?: Record<string, string>, raw?: boolean}} [options]
 * @returns {Promise<any>}
 */
export async function ask(path, options = {}) {
  const { method = "GET", body, headers = {}, raw = false } = options;
  const plain = body === undefined || typeof body === "string" || body instanceof Uint8Array;
  const sent = { ...headers };
  if (method !== "GET" && state.session?.csrf) sent["Wirelake-Csrf"] = state.session.csrf;
  if (!plain) sent["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method, headers: sent, body: plain ? body : JSON.stringify(body) });
  } catch {
    throw new Refused(0, "closed", "the broker cannot be reached");
  }
  if (response.status === 401 && path !== "/v1/session") state.onLogout();
  if (!response.ok) {
    const told = await response.json().catch(() => ({}));
    throw new Refused(response.status, told.error ?? "internal", told.text ?? response.statusText);
  }
  if (raw) return response;
  return response.status === 204 ? null : response.json();
}

/** The path of an address, key or queue: slashes stay, all else is escaped. @param {string} text */
export const inPath = (text) => text.split("/").map(encodeURIComponent).join("/");

/**
 * The figures of some parts, and the messages of some filters, as long as the page is shown. There is
 * one stream a page; after a failure it is opened again, at first at once and then ever more slowly.
 * @param {string[]} parts
 * @param {{filters?: string[], watch?: string[], rate?: number, onMessages?: (told: any) => void, paused?: boolean}} [options]
 */
export function useLive(parts, options = {}) {
  const { filters = [], watch = [], rate = 200, paused = false } = options;
  const [figures, setFigures] = useState(/** @type {any} */ (null));
  const [problem, setProblem] = useState("");
  const handler = useRef(options.onMessages);
  handler.current = options.onMessages;
  const key = JSON.stringify([parts, filters, watch, rate]);
  useEffect(() => {
    if (paused || (!parts.length && !filters.length && !watch.length)) return undefined;
    /** @type {EventSource | null} */
    let source = null;
    let timer = 0;
    let delay = 250;
    let ended = false;
    const query = new URLSearchParams();
    parts.forEach((part) => query.append("part", part));
    filters.forEach((filter) => query.append("filter", filter));
    watch.forEach((filter) => query.append("watch", filter));
    query.set("rate", String(rate));
    const retry = async () => {
      source?.close();
      if (ended) return;
      lost(true);
      try {
        // An event source does not tell why it was refused, so the question is asked once more.
        const session = await ask("/v1/session");
        if (session.stranger) return state.onLogout();
        const test = new AbortController();
        const response = await fetch(`/v1/live?${query}`, { signal: test.signal });
        if (response.status >= 400 && response.status < 500) {
          lost(false);
          setProblem((await response.json()).text);
          return;
        }
        test.abort();
      } catch (error) {
        if (error instanceof Refused && error.status === 401) return state.onLogout();
      }
      delay = Math.min(delay * 1.6, 5000);
      timer = window.setTimeout(open, delay);
    };
    const open = () => {
      if (ended) return;
      source = new EventSource(`/v1/live?${query}`);
      source.onopen = () => {
        delay = 250;
        lost(false);
        setProblem("");
      };
      source.onerror = retry;
      source.addEventListener("end", retry);
      source.addEventListener("figures", (event) => setFigures(JSON.parse(event.data)));
      source.addEventListener("messages", (event) => handler.current?.(JSON.parse(event.data)));
    };
    open();
    return () => {
      ended = true;
      source?.close();
      window.clearTimeout(timer);
      lost(false);
    };
  }, [key, paused]);
  return { figures, problem };
}

/** Tells the frame of the page that the broker is away, or is back. @param {boolean} away */
function lost(away) {
  window.dispatchEvent(new CustomEvent("wirelake-away", { detail: away }));
}

/**
 * A value that is asked for once, and again on `reload`.
 * @param {() => Promise<any>} make @param {any[]} keys
 */
export function useAnswer(make, keys) {
  const [value, setValue] = useState(/** @type {any} */ (null));
  const [error, setError] = useState("");
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    let current = true;
    make().then(
      (told) => current && (setValue(told), setError("")),
      (reason) => current && setError(reason.message),
    );
    return () => {
      current = false;
    };
  }, [...keys, turn]);
  return { value, error, reload: () => setTurn((/** @type {number} */ old) => old + 1) };
}

/** Show a sentence for a moment. @param {string} text */
export function tell(text) {
  window.dispatchEvent(new CustomEvent("wirelake-tell", { detail: text }));
}

/** Do something and tell what came of it. @param {() => Promise<any>} work @param {string} [done] */
export async function attempt(work, done = "") {
  try {
    const value = await work();
    if (done) tell(done);
    return value;
  } catch (error) {
    tell(error instanceof Error ? error.message : String(error));
    return undefined;
  }
}

// How values are shown

// Characters that would move, hide or turn around what stands beside them.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;

/** Text in which nothing is hidden. @param {unknown} text @param {string} [keep] */
export function visible(text, keep = "") {
  return String(text ?? "").replace(HIDDEN, (one) =>
    keep.includes(one) ? one : `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

/** @param {number} value @param {string[]} units @param {number} factor */
function scaled(value, units, factor) {
  let unit = 0;
  while (Math.round(value) >= factor && unit < units.length - 1) {
    value /= factor;
    unit += 1;
  }
  const digits = value >= 100 || Number.isInteger(value) ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)}${units[unit] ? ` ${units[unit]}` : ""}`;
}

/** @param {number} value */
export const count = (value) => Math.round(value ?? 0).toLocaleString("en");
/** A number with its noun. @param {number} value @param {string} one @param {string} [more] */
export const counted = (value, one, more = `${one}s`) => `${count(value)} ${value === 1 ? one : more}`;
/** @param {number} value */
export const short = (value) => scaled(value ?? 0, ["", "k", "M", "G"], 1000);
/** @param {number} value */
export const bytes = (value) => scaled(value ?? 0, ["B", "KiB", "MiB", "GiB", "TiB"], 1024);
/** @param {number} value */
export const perSecond = (value) => (value ? `${value < 10 ? Number(value.toFixed(1)) : short(value)}/s` : "");
/** @param {number} seconds */
export function duration(seconds) {
  if (seconds < 1) return scaled(seconds * 1e6, ["µs", "ms"], 1000);
  if (seconds < 120) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}
/** The time of day of µs since 1970. @param {number} micros */
export function clock(micros) {
  const time = new Date(micros / 1000);
  const part = (/** @type {number} */ value, size = 2) => String(value).padStart(size, "0");
  return `${part(time.getHours())}:${part(time.getMinutes())}:${part(time.getSeconds())}.${part(time.getMilliseconds(), 3)}`;
}
/** Date and time of µs since 1970. @param {number} micros */
export function when(micros) {
  if (!micros) return "–";
  const time = new Date(micros / 1000);
  return `${time.getFullYear()}-${String(time.getMonth() + 1).padStart(2, "0")}-${String(time.getDate()).padStart(2, "0")} ${clock(micros)}`;
}

/** The bytes of a message or of a key. @param {{payload?: string, value?: string, base64?: string}} message */
export function payloadBytes(message) {
  if (message.base64 !== undefined) return Uint8Array.from(atob(message.base64), (c) => c.charCodeAt(0));
  return new TextEncoder().encode(message.payload ?? message.value ?? "");
}

/** @param {Uint8Array} data */
export function hexLines(data, most = 4096) {
  const lines = [];
  for (let at = 0; at < Math.min(data.length, most); at += 16) {
    const part = [...data.slice(at, at + 16)];
    const hex = part.map((one) => one.toString(16).padStart(2, "0")).join(" ");
    const text = part.map((one) => (one > 31 && one < 127 ? String.fromCharCode(one) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex.padEnd(47)}  ${text}`);
  }
  if (data.length > most) lines.push(`… ${data.length - most} more bytes`);
  return lines.join("\n");
}

/** What a payload is: JSON, CBOR (as the broker found), text or bytes. @param {any} message */
export function payloadKind(message) {
  if (message.cbor !== undefined) return "CBOR";
  if (message.base64 !== undefined) return "hex";
  const text = (message.payload ?? message.value ?? "").trim();
  if (/^[[{]/.test(text)) {
    try {
      JSON.parse(text);
      return "JSON";
    } catch {
      return "text";
    }
  }
  return "text";
}

/** The colour of a dialect, as the broker's registry has it. @param {string} dialect */
export const colourOf = (dialect) => state.session?.about?.[dialect]?.colour ?? "var(--none)";

/** Let a browser keep a text as a file. @param {string} name @param {BlobPart} content @param {string} type */
export function save(name, content, type) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  URL.revokeObjectURL(url);
}

/** Where the page is: `#/explore?filter=a` is ["explore", {filter: "a"}]. */
export function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { page: path || "overview", query: new URLSearchParams(query ?? "") };
}

/** A link to a page. @param {string} page @param {Record<string, string | number>} [query] */
export function to(page, query = {}) {
  const text = new URLSearchParams(Object.entries(query).map(([k, v]) => [k, String(v)])).toString();
  return `#/${page}${text ? `?${text}` : ""}`;
}

/**
 * Keeps the focus where it was while what has it is moved or drawn anew: give the answer to `ref`.
 * A browser takes the focus from an element that is moved, which lists do whose order changes.
 */
export function useKeptFocus() {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const held = useRef(/** @type {HTMLElement | null} */ (null));
  const active = document.activeElement;
  held.current = active instanceof HTMLElement && box.current?.contains(active) ? active : null;
  useLayoutEffect(() => {
    const was = held.current;
    if (was && document.activeElement !== was && box.current?.contains(was)) was.focus({ preventScroll: true });
  });
  return box;
}

/**
 * Up, down, Home and End move between the elements of a list; others go to `also`.
 * @param {string} items a selector @param {(event: KeyboardEvent, item: HTMLElement) => void} [also]
 */
export const arrows = (items, also) => (/** @type {KeyboardEvent} */ event) => {
  const box = /** @type {HTMLElement} */ (event.currentTarget);
  const all = /** @type {HTMLElement[]} */ ([...box.querySelectorAll(items)]);
  const here = event.target instanceof Element ? event.target.closest(items) : null;
  const at = all.findIndex((one) => one === here);
  const next = { ArrowDown: at + 1, ArrowUp: Math.max(0, at - 1), Home: 0, End: all.length - 1 }[event.key];
  if (event.target instanceof HTMLInputElement && !["checkbox", "radio"].includes(event.target.type)) return;
  if (next !== undefined && all.length) {
    event.preventDefault();
    all[Math.min(next, all.length - 1)].focus();
  } else if (at >= 0) also?.(event, all[at]);
};

/** Where a search of the log goes on. @param {Record<string, number>} before */
export const continued = (before) => Object.entries(before).map(([partition, offset]) => `${partition}:${offset}`).join();

/**
 * The newest rows that match. A search ends after two seconds, so it is continued, at most seven times.
 * @param {URLSearchParams} query with a limit @returns {Promise<{rows: any[]}>}
 */
export async function findRows(query) {
  const wanted = Number(query.get("limit"));
  const asked = new URLSearchParams(query);
  const rows = [];
  for (let turn = 0; turn < 8 && rows.length < wanted; turn += 1) {
    asked.set("limit", String(wanted - rows.length));
    const told = await ask(`/v1/rows?${asked}`);
    rows.push(...told.rows);
    if (!told.more) break;
    asked.set("before", continued(told.before));
  }
  return { rows };
}

/**
 * The row of the log that a page was asked for, by its offset or else by its time. A row that was
 * delivered this moment may not be durable yet, so it is looked for twice.
 * @param {URLSearchParams} query @returns {Promise<any>} null where there is none
 */
export async function findRow(query) {
  const [address, time, offset] = ["address", "time", "offset"].map((name) => query.get(name) ?? "");
  /** @type {Record<string, string>} */
  const which = offset ? { offset, limit: "1" } : { time_from: time, time_to: String(Number(time) + 1), limit: "1" };
  for (const wait of [0, 400]) {
    await new Promise((done) => setTimeout(done, wait));
    const { rows } = await ask(`/v1/rows?${new URLSearchParams({ ...(address && { filter: address }), ...which })}`);
    if (rows[0] && (!offset || `${rows[0].partition}:${rows[0].offset}` === offset)) return rows[0];
  }
  return null;
}
