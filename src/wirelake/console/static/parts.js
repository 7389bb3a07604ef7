// The parts that pages are made of.

import plot from "./vendor/uplot.js";
import {
  arrows,
  clock,
  colourOf,
  duration,
  hexLines,
  html,
  payloadBytes,
  payloadKind,
  useEffect,
  useKeptFocus,
  useRef,
  useState,
  visible,
} from "./lib.js";

/** @type {any} */
const Plot = plot;

/** Text that came over a wire: nothing hidden, and it turns nothing around. @param {{v: any}} props */
export const T = ({ v }) => html`<bdi>${visible(v)}</bdi>`;

/** @param {{title: any, aside?: any, wide?: boolean, children?: any, id?: string, kind?: string}} props */
export function Card({ title, aside, wide, children, id, kind = "" }) {
  return html`<section class=${`card ${wide ? "wide" : ""} ${kind}`} id=${id} aria-label=${typeof title === "string" ? title : undefined}>
    <h2>${title}${aside && html`<span class="soft">${aside}</span>`}</h2>${children}
  </section>`;
}

/** A figure, perhaps with its last minutes. @param {{value: any, name: string, href?: string, kind?: string, past?: number[], more?: any}} props */
export function Tile({ value, name, href, kind, past, more }) {
  const shown = html`<b class=${kind}>${value}</b>`;
  return html`<div class="tile">${href ? html`<a href=${href}>${shown}<span class="soft">${name}</span></a>` : html`${shown}<span class="soft">${name}</span>`}
    ${more && html`<small class="soft">${more}</small>`}${past && past.length > 1 && html`<${Sparkline} values=${past} />`}</div>`;
}

/** @param {{values: number[]}} props */
function Sparkline({ values }) {
  const most = Math.max(1, ...values);
  const line = values.map((value, at) => `${((100 * at) / (values.length - 1)).toFixed(1)},${(21 - (19 * value) / most).toFixed(1)}`).join(" ");
  return html`<svg class="sparkline" viewBox="0 0 100 22" preserveAspectRatio="none" aria-hidden="true"><polygon points=${`0,22 ${line} 100,22`}></polygon><polyline points=${line}></polyline></svg>`;
}

/** @param {{of: string}} props */
export const Dialect = ({ of }) => html`<span class="nowrap"><i class="dot" style=${{ background: colourOf(of) }}></i>${visible(of) || "broker"}</span>`;

/** The column of a table that has dialects. */
export const BY_DIALECT = { key: "dialect", title: "dialect", show: (/** @type {any} */ one) => html`<${Dialect} of=${one.dialect} />` };

/** A spot in the colour of a dialect. @param {{of: string}} props */
export const Dot = ({ of }) => html`<i class="dot" role="img" aria-label=${visible(of) || "broker"} title=${visible(of)} style=${{ background: colourOf(of) }}></i>`;

/**
 * @typedef {{key: string, title: string, number?: boolean, show?: ((row: any) => any) | null, wide?: boolean,
 *   value?: (row: any) => any, name?: string}} Column
 * @typedef {[string, string, (((one: any) => any) | null)?, string?]} Short
 */
/**
 * Columns of a table in short: key, title, how it is shown, and "n" for numbers, "t" for long texts.
 * @param {...(Short | Column)} of
 */
export const columns = (...of) => of.map((one) => (Array.isArray(one) ? { key: one[0], title: one[1], show: one[2], number: one[3] === "n", wide: one[3] === "t" } : one));

/**
 * A table whose columns can be sorted by.
 * @param {{columns: Column[], rows: any[], name: string, id?: string | ((row: any) => any), empty?: string,
 *   selected?: any, onPick?: (row: any) => void, sort?: string, most?: number}} props
 */
export function Table({ columns, rows, name, id, empty = "None.", selected, onPick, sort = "", most = 500 }) {
  const [by, setBy] = useState({ key: sort.replace("-", ""), down: sort.startsWith("-") });
  const box = useKeptFocus();
  if (!rows.length) return html`<p class="soft">${empty}</p>`;
  const column = columns.find((one) => one.key === by.key);
  const value = column?.value ?? ((/** @type {any} */ row) => row[by.key]);
  const sorted = column
    ? [...rows].sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        const order = typeof x === "number" ? x - y : String(x).localeCompare(String(y));
        return by.down ? -order : order;
      })
    : rows;
  const shown = sorted.slice(0, most);
  const keys = shown.map((row, at) => (typeof id === "string" ? row[id] : id ? id(row) : at));
  // Of rows that can be picked one is in the order of Tab; arrows go to the others.
  const entry = Math.max(0, keys.indexOf(selected));
  const pick = (/** @type {any} */ event, /** @type {HTMLElement} */ row) => {
    if (event.target !== row || (event.key !== "Enter" && event.key !== " ")) return;
    event.preventDefault();
    row.click();
  };
  return html`<div class="scroll" ref=${box} tabindex=${onPick ? -1 : 0} role="region" aria-label=${name}>
    <table aria-label=${name} onKeyDown=${onPick && arrows("tbody tr", pick)}>
      <thead><tr>${columns.map(
        (one) => html`<th class=${one.number ? "n" : ""} scope="col"
          aria-sort=${by.key === one.key ? (by.down ? "descending" : "ascending") : undefined}>
          ${one.title ? html`<button onClick=${() => setBy({ key: one.key, down: by.key === one.key ? !by.down : !!one.number })}>
            ${one.title}${by.key === one.key ? (by.down ? " ↓" : " ↑") : ""}</button>` : html`<span class="hidden">${one.name ?? one.key}</span>`}</th>`,
      )}</tr></thead>
      <tbody>${shown.map(
        (row, at) => html`<tr key=${keys[at]} class=${onPick ? "pick" : ""} tabindex=${onPick ? (at === entry ? 0 : -1) : undefined}
          aria-selected=${onPick && selected !== undefined ? String(selected === keys[at]) : undefined}
          onClick=${onPick && (() => onPick(row))}>
          ${columns.map((one) => html`<td class=${one.number ? "n" : one.wide ? "t" : ""}>${one.show ? one.show(row) : html`<${T} v=${row[one.key]} />`}</td>`)}
        </tr>`,
      )}</tbody>
    </table>
    ${sorted.length > most && html`<p class="soft">${sorted.length - most} more are not shown.</p>`}
  </div>`;
}

const probe = document.createElement("i");

/** A colour of the style sheet as it is in this moment: a canvas knows no variables. @param {string} name */
export function css(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

/**
 * One of a few, as buttons side by side.
 * @param {{name: string, of: (string | [string, any])[], value: any, onChange: (value: any) => void}} props
 */
export function Choice({ name, of, value, onChange }) {
  return html`<span class="choice" role="group" aria-label=${name}>${of.map((one) => {
    const [title, mine] = Array.isArray(one) ? one : [one, one];
    return html`<button type="button" aria-pressed=${String(mine === value)} onClick=${() => onChange(mine)}>${title}</button>`;
  })}</span>`;
}

/** Hours and minutes of seconds since 1970, and seconds where there are some. @param {number} time */
function timeOfDay(time) {
  const at = new Date(time * 1000);
  const parts = [at.getHours(), at.getMinutes(), ...(at.getSeconds() ? [at.getSeconds()] : [])];
  return parts.map((one) => String(one).padStart(2, "0")).join(":");
}

/** Pixels between two times of an axis: more where there are seconds in them. @type {(u: any, axis: number, from: number, to: number, width: number) => number} */
const room = (_u, _axis, from, to, width) => ((60 * width) / (to - from) < 80 ? 50 : 80);

/**
 * A chart over time; stacked where there are several series.
 * @param {{times: number[], series: {name: string, values: number[], colour?: string}[], height?: number,
 *   format?: (value: number) => string, label: string, bars?: boolean, onSelect?: (from: number, to: number) => void}} props
 */
export function Chart({ times, series, height = 190, format = String, label, onSelect, bars = false }) {
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  const chart = useRef(/** @type {any} */ (null));
  const [at, setAt] = useState(/** @type {number | null} */ (null));
  const names = series.map((one) => one.name).join();
  const stacked = [];
  /** @type {number[]} */
  let sums = new Array(times.length).fill(0);
  for (const one of series) {
    sums = sums.map((sum, at) => sum + (one.values[at] ?? 0));
    stacked.unshift(sums);
  }
  const data = [times, ...stacked];
  useEffect(() => {
    const element = place.current;
    if (!element) return undefined;
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const make = () => {
      chart.current?.destroy();
      const axis = { stroke: css("soft"), grid: { stroke: css("line"), width: 1 }, ticks: { stroke: css("line") } };
      const colours = series.map((one) => (one.colour ? css(one.colour) : colourOf(one.name).startsWith("#") ? colourOf(one.name) : css("none")));
      chart.current = new Plot(
        {
          width: Math.max(element.clientWidth, 120),
          height,
          legend: { show: false },
          cursor: { drag: { x: !!onSelect, y: false, setScale: false }, points: { show: false } },
          scales: { y: { range: (/** @type {any} */ _u, /** @type {number} */ _low, /** @type {number} */ high) => [0, Math.max(1, high * 1.08)] } },
          axes: [{ ...axis, space: room, values: (/** @type {any} */ _u, /** @type {number[]} */ ticks) => ticks.map(timeOfDay) }, { ...axis, size: 58, values: (/** @type {any} */ _u, /** @type {number[]} */ ticks) => ticks.map(format) }],
          series: [{}, ...[...colours].reverse().map((one) => ({ stroke: one, fill: one, width: 1, points: { show: false }, ...(bars && { paths: Plot.paths.bars({ size: [0.85, 60] }) }) }))],
          hooks: {
            setCursor: [(/** @type {any} */ u) => setAt(u.cursor.idx ?? null)],
            setSelect: [
              (/** @type {any} */ u) => {
                if (onSelect && u.select.width > 4) onSelect(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x"));
              },
            ],
          },
        },
        data,
        element,
      );
    };
    make();
    const observer = new ResizeObserver(() => chart.current?.setSize({ width: Math.max(element.clientWidth, 120), height }));
    observer.observe(element);
    dark.addEventListener("change", make);
    window.addEventListener("wirelake-theme", make);
    return () => {
      observer.disconnect();
      dark.removeEventListener("change", make);
      window.removeEventListener("wirelake-theme", make);
      chart.current?.destroy();
      chart.current = null;
    };
  }, [names, height]);
  useEffect(() => chart.current?.setData(data));
  const last = sums[sums.length - 1] ?? 0;
  const read = at !== null && at < times.length ? at : null;
  return html`<div class="plotbox"><div class="readout soft" aria-hidden="true">${read !== null && html`${timeOfDay(times[read])} ${series.map((one) => html`<span class="nowrap">${series.length > 1 && html`<${Dot} of=${one.name} />`}${format(one.values[read] ?? 0)}</span> `)}${series.length > 1 && html`<b>${format(sums[read])}</b>`}`}</div>
    <div class="plot" ref=${place} role="img" aria-label=${`${label}: now ${format(last)}, at most ${format(Math.max(0, ...sums))}`}></div></div>`;
}

/** @param {{series: {name: string, colour?: string}[]}} props */
export const Legend = ({ series }) => html`<div class="legend">${series.map((one) => html`<${Dialect} of=${one.name} />`)}</div>`;

/** Bars with a name and a figure. @param {{rows: {name: string, value: number, text?: string}[]}} props */
export function Bars({ rows }) {
  const most = Math.max(1, ...rows.map((one) => one.value));
  if (!rows.length) return html`<p class="soft">None.</p>`;
  return html`<div class="bars">${rows.map(
    (one) => html`<span><${T} v=${one.name} /></span>
      <svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect width=${Math.max(0.5, (100 * one.value) / most)} height="8" rx="1" fill="var(--accent)"></rect></svg>
      <span>${one.text ?? one.value}</span>`,
  )}</div>`;
}

/** How often something took how long. @param {{state: {bounds: number[], classes: number[], seconds: number}}} props */
export function Latencies({ state }) {
  const total = state.classes.reduce((sum, one) => sum + one, 0);
  if (!total) return html`<p class="soft">Nothing was measured yet.</p>`;
  const rank = (/** @type {number} */ share) => {
    let left = total * share;
    const at = state.classes.findIndex((one) => (left -= one) <= 0);
    return at < state.bounds.length ? `≤ ${duration(state.bounds[at])}` : `> ${duration(state.bounds[at - 1])}`;
  };
  const rows = state.classes.map((value, at) => ({
    name: at < state.bounds.length ? `≤ ${duration(state.bounds[at])}` : `> ${duration(state.bounds[at - 1])}`,
    value,
    text: value.toLocaleString("en"),
  }));
  const first = rows.findIndex((one) => one.value);
  const last = rows.findLastIndex((one) => one.value);
  return html`<p>Half take ${rank(0.5)}, 99 % ${rank(0.99)}; mean ${duration(state.seconds / total)}.</p>
    <${Bars} rows=${rows.slice(first, last + 1)} />`;
}

/** A payload, in the form that suits it; others can be chosen. @param {{message: any}} props */
export function Payload({ message }) {
  const found = payloadKind(message);
  const [chosen, setForm] = useState("");
  const forms = [found, ...["text", "hex"].filter((one) => one !== found)];
  const form = forms.includes(chosen) ? chosen : found;
  const data = payloadBytes(message);
  let text = "";
  if (form === "JSON") text = JSON.stringify(JSON.parse(message.payload ?? message.value), null, 2);
  else if (form === "CBOR") text = JSON.stringify(message.cbor, null, 2);
  else if (form === "hex") text = hexLines(data);
  else text = new TextDecoder().decode(data);
  return html`<div class="row">
      <${Choice} name="Form of the payload" of=${forms} value=${form} onChange=${setForm} />
      <span class="soft">${(message.size ?? data.length).toLocaleString("en")} bytes${message.cut ? ", cut here; the log has all" : ""}</span>
    </div>
    <pre tabindex="0" aria-label="Payload"><bdi>${visible(text, "\n\t")}</bdi></pre>`;
}

const SHOWN = ["op", "id", "correlation_id", "source", "target", "peer", "content_type", "priority", "ttl", "attempts", "partition", "offset", "sequence"];

/** Every field of a message. @param {{message: any, children?: any}} props */
export function Message({ message, children }) {
  const time = message.time ?? message.timestamp;
  return html`<dl class="kv">
      <dt>address</dt><dd><${T} v=${message.address} /></dd>
      ${time ? html`<dt>time</dt><dd title=${String(time)}>${clock(time)}</dd>` : null}
      ${message.dialect !== undefined && html`<dt>dialect</dt><dd><${Dialect} of=${message.dialect} /></dd>`}
      ${SHOWN.filter((name) => message[name]).map((name) => html`<dt>${name.replace("_", " ")}</dt><dd><${T} v=${message[name]} /></dd>`)}
      ${Object.entries(message.headers ?? {}).map(([name, value]) => html`<dt><${T} v=${name} /></dt><dd><${T} v=${value} /></dd>`)}
    </dl>
    <h3>Payload</h3><${Payload} message=${message} />${children}`;
}

/** A question before something cannot be undone. @param {{title: string, children?: any, verb: string, onDo: () => void, onClose: () => void}} props */
export function Confirm({ title, children, verb, onDo, onClose }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    // Whoever opened it has the focus again when it closes, if it is still there.
    const before = document.activeElement;
    dialog.current?.showModal();
    return () => before instanceof HTMLElement && before.isConnected && before.focus();
  }, []);
  return html`<dialog class="dialog" ref=${dialog} onClose=${onClose} aria-label=${title}>
    <h2>${title}</h2>${children}
    <div class="row"><button class="main" onClick=${() => { dialog.current?.close(); onDo(); }}>${verb}</button>
      <button autofocus onClick=${() => dialog.current?.close()}>Cancel</button></div>
  </dialog>`;
}

/** @param {{text: string, name?: string}} props */
export function Copy({ text, name = "Copy" }) {
  const [done, setDone] = useState(false);
  return html`<button onClick=${async () => { await navigator.clipboard?.writeText(text).catch(() => {}); setDone(true); setTimeout(() => setDone(false), 1500); }}>${done ? "Copied" : name}</button>`;
}
