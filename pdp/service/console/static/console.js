// The pages work without this script. It adds live updates, keys and notifications.
"use strict";

const REFRESH_MS = 30000; // Times such as "in 41 min" are at most this old.
const GATHER_MS = 100; // Events that arrive together cause one request.
const RETRY_MS = 3000;

const byId = (id) => document.getElementById(id);

function setting(name, value) {
  try {
    if (value !== undefined) localStorage.setItem(name, value);
    return localStorage.getItem(name);
  } catch {
    return null; // The browser stores nothing, so each page starts with the defaults.
  }
}

// Run a change of the page without moving what is under the pointer or has the focus.
let pointer = null;
document.addEventListener("pointermove", (event) => { pointer = [event.clientX, event.clientY]; }, { passive: true });

function inPlace(change) {
  const focused = document.activeElement !== document.body ? document.activeElement : null;
  const anchor = (pointer && document.elementFromPoint(...pointer)?.closest("tr, button, a, input")) || focused;
  const before = anchor?.getBoundingClientRect().top;
  change();
  if (anchor?.isConnected) {
    const moved = anchor.getBoundingClientRect().top - before;
    if (moved) window.scrollBy(0, moved);
  }
}

// Load the page that is shown once more. If the session has ended, open the sign-in page.
async function loadAgain() {
  const answer = await fetch(location.href, { credentials: "same-origin", cache: "no-store" });
  if (answer.redirected && new URL(answer.url).pathname === "/console/sign-in") {
    location.href = answer.url;
    return null;
  }
  if (!answer.ok) throw new Error(String(answer.status));
  return new DOMParser().parseFromString(await answer.text(), "text/html");
}

const rowsOf = (page, id) => new Map(
  [...page.querySelectorAll(`#${id} tbody tr[data-id]`)].map((row) => [row.dataset.id, row]),
);

function copyTimes(from, to) {
  const times = from.querySelectorAll("time");
  to.querySelectorAll("time").forEach((time, index) => {
    if (times[index]) time.textContent = times[index].textContent;
  });
}

// The inbox: a row keeps its place while the page is open, and new rows come after the others.
function updateInbox(page) {
  if (!byId("mine")) return;
  const shown = rowsOf(document, "mine");
  const now = rowsOf(page, "mine");
  const closed = rowsOf(page, "history");
  const added = [];
  for (const [id, row] of shown) {
    if (now.has(id)) {
      copyTimes(now.get(id), row);
    } else if (!row.classList.contains("gone")) {
      row.classList.add("gone");
      const box = row.querySelector("input");
      if (box) {
        box.checked = false;
        box.disabled = true;
      }
      const tag = closed.get(id)?.querySelector(".tag");
      if (tag) row.lastElementChild.replaceChildren(document.importNode(tag, true));
    }
  }
  for (const [id, row] of now) {
    if (shown.has(id)) continue;
    const copy = document.importNode(row, true);
    copy.classList.add("new");
    byId("mine").tBodies[0].append(copy);
    added.push(copy);
  }
  for (const id of ["mine", "deny", "others", "mine-empty"]) {
    const other = page.getElementById(id);
    if (byId(id) && other) byId(id).hidden = id === "mine" ? !byId("mine").rows[1] : other.hidden;
  }
  byId("mine-empty").hidden = !byId("mine").hidden;
  for (const selector of ["#others tbody", "#history tbody", "h1"]) {
    const [old, other] = [document.querySelector(selector), page.querySelector(selector)];
    if (old && other && !old.contains(document.activeElement)) old.replaceChildren(...other.childNodes);
  }
  document.title = page.title;
  if (added.length) announce(added);
}

function announce(rows) {
  const live = byId("live");
  byId("live-state").textContent = `${rows.length} ${live.dataset.new}`;
  if (setting("notify") !== "on" || !("Notification" in window) || Notification.permission !== "granted") return;
  if (document.visibilityState === "visible") return;
  for (const row of rows.slice(0, 3)) {
    const link = row.querySelector("th a");
    const note = new Notification(live.dataset.notify, { body: link.textContent, tag: row.dataset.id });
    note.onclick = () => { window.focus(); location.href = link.href; };
  }
}

// One approval: what was typed stays. If nothing is left to decide, the buttons stop working.
function updateApproval(page) {
  const [old, other] = [byId("state"), page.getElementById("state")];
  if (!other) return;
  copyTimes(other, old);
  if (old.dataset.state === other.dataset.state) return;
  old.replaceWith(document.importNode(other, true));
  const people = [byId("people")?.parentElement, page.getElementById("people")?.parentElement];
  if (people[0] && people[1]) people[0].replaceChildren(...people[1].childNodes);
  document.querySelectorAll("#bar button").forEach((button) => {
    const same = page.querySelector(`#bar button[value="${button.value}"]`);
    button.disabled = !same;
  });
  const say = byId("bar-state");
  if (say) say.textContent = byId("state").textContent.trim();
}

// A list whose newest rows are at the top, such as the decisions.
function updateList(page) {
  const [old, other] = [document.querySelector("#list tbody"), page.querySelector("#list tbody")];
  if (!old || !other) return;
  const known = rowsOf(document, "list");
  const rows = [...other.rows].map((row) => {
    const copy = document.importNode(row, true);
    if (!known.has(row.dataset.id)) copy.classList.add("new");
    return known.get(row.dataset.id) ?? copy;
  });
  old.replaceChildren(...rows);
}

const UPDATES = { inbox: updateInbox, approval: updateApproval, list: updateList };

function follow(element) {
  const update = UPDATES[element.dataset.live];
  const path = element.dataset.events ?? "/console/events";
  let timer = null;
  let isLoading = false;
  let isOutdated = false; // An event came while the page was being loaded.
  let source = null;
  const load = async () => {
    timer = null;
    isLoading = true;
    isOutdated = false;
    try {
      const page = await loadAgain();
      if (page) inPlace(() => update(page));
      say("");
    } catch {
      say(element.dataset.off);
    }
    isLoading = false;
    if (isOutdated) refresh();
  };
  const refresh = () => {
    if (isLoading) isOutdated = true;
    else timer ??= setTimeout(load, GATHER_MS);
  };
  const say = (words) => {
    const state = byId("live-state");
    if (state && (words || state.textContent === element.dataset.off)) state.textContent = words ?? "";
  };
  const open = () => {
    source?.close();
    source = new EventSource(path);
    source.onopen = refresh; // Something may have changed before the connection was open.
    source.addEventListener("change", (event) => {
      const { id } = JSON.parse(event.data);
      if (!element.dataset.id || element.dataset.id === id) refresh();
    });
    source.onerror = () => {
      say(element.dataset.off);
      if (source.readyState === EventSource.CLOSED) setTimeout(() => { refresh(); open(); }, RETRY_MS);
    };
  };
  open();
  setInterval(() => { if (document.visibilityState === "visible") refresh(); }, REFRESH_MS);
  // A browser opens only six connections to a service, so hidden pages follow nothing unless they notify.
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "visible") open();
    else if (setting("notify") !== "on") source.close();
  });
  const ends = element.querySelector("time[data-ends]")?.dateTime;
  const left = ends ? Date.parse(ends) - Date.now() : 0;
  if (left > 0 && left < 2 ** 31) setTimeout(refresh, left + 500);
}

function offerNotifications(button) {
  if (!("Notification" in window)) return;
  const label = () => {
    const on = setting("notify") === "on" && Notification.permission === "granted";
    button.textContent = Notification.permission === "denied" ? button.dataset.refused : button.dataset[on ? "on" : "ask"];
    button.disabled = Notification.permission === "denied";
  };
  button.hidden = false;
  button.addEventListener("click", async () => {
    const on = setting("notify") === "on" && Notification.permission === "granted";
    if (on) setting("notify", "off");
    else if (await Notification.requestPermission() === "granted") setting("notify", "on");
    label();
  });
  label();
}

// Keys: the help page lists them, and turns them off.
function moveBy(step) {
  const links = [...document.querySelectorAll("table.rows tbody th a")].filter((link) => link.offsetParent);
  const at = links.indexOf(document.activeElement);
  links[Math.min(Math.max(at + step, 0), links.length - 1)]?.focus();
}

const KEYS = {
  j: () => moveBy(1),
  k: () => moveBy(-1),
  a: () => document.querySelector("[data-key=a]")?.focus(),
  d: () => document.querySelector("[data-key=d]")?.focus(),
  "/": () => document.querySelector(".filters input, .filters select")?.focus(),
  i: () => { location.href = "/console/approvals"; },
  "?": () => { location.href = "/console/help"; },
};

document.addEventListener("keydown", (event) => {
  if (setting("keys") === "off" || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (event.target.closest("input, select, textarea")) return;
  if (Object.hasOwn(KEYS, event.key)) {
    event.preventDefault();
    KEYS[event.key]();
  }
});

const live = document.querySelector("[data-live]");
if (live) follow(live);
if (byId("notify")) offerNotifications(byId("notify"));
const keys = byId("keys");
if (keys) {
  keys.closest("[hidden]")?.removeAttribute("hidden");
  keys.checked = setting("keys") !== "off";
  keys.addEventListener("change", () => setting("keys", keys.checked ? "on" : "off"));
}
