// Brings pages up to date while somebody looks at them, and counts down. Every page works without this.
'use strict';

(() => {
  const page = document.body;
  const indicator = document.getElementById('live');
  const every = Number(page.dataset.live || 0);
  // The server's clock, as far as it differs from this one.
  const ahead = Number(page.dataset.now || Date.now()) - Date.now();
  const now = () => Date.now() + ahead;

  // --- Countdowns -----------------------------------------------------------------------------------------------------

  const pad = (number) => String(number);
  const length = (seconds) => {
    const whole = Math.max(0, seconds);
    if (whole < 60) return `${pad(Math.ceil(whole))}s`;
    const [minutes, hours, days] = [Math.floor(whole / 60), Math.floor(whole / 3600), Math.floor(whole / 86400)];
    if (hours < 1) return `${minutes}m ${pad(Math.floor(whole % 60))}s`;
    if (days < 1) return `${hours}h ${pad(minutes % 60)}m`;
    return `${days}d ${pad(hours % 24)}h`;
  };

  const count = () => {
    for (const element of document.querySelectorAll('[data-until]')) {
      const left = (Number(element.dataset.until) - now()) / 1000;
      set(element, left <= 0 ? 'now' : length(left));
    }
    for (const element of document.querySelectorAll('[data-since]')) {
      const past = (now() - Number(element.dataset.since)) / 1000;
      set(element, past < 1 ? 'now' : `${length(Math.floor(past))} ago`);
    }
  };

  const set = (element, text) => {
    if (element.textContent !== text) element.textContent = text;
  };

  // --- Bringing the page up to date -------------------------------------------------------------------------------------

  // Makes `from` look like `to` and keeps what is the same: the focus, what is selected, what is open.
  const morph = (from, to) => {
    if (from.nodeType !== to.nodeType || from.nodeName !== to.nodeName) {
      from.replaceWith(to.cloneNode(true));
      return;
    }
    if (from.nodeType !== Node.ELEMENT_NODE) {
      if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
      return;
    }
    if (from.dataset.keep !== undefined) return;
    const isField = /^(INPUT|SELECT|TEXTAREA)$/.test(from.nodeName);
    const isOpen = from.nodeName === 'DETAILS';
    for (const { name } of [...from.attributes]) {
      if (!to.hasAttribute(name) && !(isOpen && name === 'open')) from.removeAttribute(name);
    }
    for (const { name, value } of to.attributes) {
      if (from.getAttribute(name) !== value && !(isOpen && name === 'open')) from.setAttribute(name, value);
    }
    if (isField) return;
    const counts = from.dataset.until !== undefined || from.dataset.since !== undefined;
    if (counts) return;
    children(from, to);
  };

  const children = (from, to) => {
    const named = new Map();
    for (const child of from.children) if (child.id) named.set(child.id, child);
    let at = from.firstChild;
    for (const wanted of [...to.childNodes]) {
      const same = wanted.id ? named.get(wanted.id) : null;
      if (same && same !== at) from.insertBefore(same, at);
      if (same) {
        at = same.nextSibling;
        morph(same, wanted);
      } else if (at && !(at.id && wanted.id !== at.id)) {
        const next = at.nextSibling;
        morph(at, wanted);
        at = next;
      } else {
        from.insertBefore(wanted.cloneNode(true), at);
      }
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  };

  let fetching = false;
  let due = false;
  let lastAt = 0;

  const refresh = async () => {
    if (fetching || document.hidden) {
      due = true;
      return;
    }
    fetching = true;
    due = false;
    try {
      const response = await fetch(location.href, { headers: { Accept: 'text/html' }, credentials: 'same-origin' });
      if (response.redirected) {
        location.reload();
        return;
      }
      const text = await response.text();
      if (response.ok && !document.hidden) {
        const next = new DOMParser().parseFromString(text, 'text/html');
        const [old, fresh] = [document.getElementById('content'), next.getElementById('content')];
        // The address may name what was just done; that was said once.
        fresh.querySelector('.notice')?.remove();
        const notice = old.querySelector('.notice');
        if (notice) fresh.prepend(notice.cloneNode(true));
        morph(old, fresh);
        count();
        page.dataset.refreshed = String(Number(page.dataset.refreshed || 0) + 1);
        say('live');
      } else if (!response.ok) {
        say('lost');
      }
    } catch {
      say('lost');
    } finally {
      fetching = false;
      lastAt = Date.now();
    }
  };

  // No more often than the page asks for.
  let waiting = 0;
  const soon = () => {
    due = true;
    if (waiting) return;
    waiting = setTimeout(() => {
      waiting = 0;
      if (due) refresh();
    }, Math.max(0, lastAt + every - Date.now()));
  };

  const words = { live: 'Live', paused: 'Paused', lost: 'Reconnecting…' };
  const say = (state) => {
    if (!indicator) return;
    indicator.hidden = false;
    indicator.dataset.state = state;
    set(indicator.querySelector('span'), words[state]);
  };

  let stream = null;
  const open = () => {
    if (stream || document.hidden || !every) return;
    const what = page.dataset.stream === 'events' ? '?what=events' : '';
    stream = new EventSource(`/live${what}`);
    stream.onopen = () => say('live');
    stream.onerror = () => {
      say('lost');
      if (stream && stream.readyState === EventSource.CLOSED) {
        // Perhaps the session has ended: the page knows where to go.
        stream = null;
        setTimeout(() => (every && !what ? refresh().then(open) : location.reload()), 3000);
      }
    };
    if (what) {
      stream.addEventListener('happened', (event) => append(JSON.parse(event.data)));
    } else {
      stream.addEventListener('change', soon);
    }
  };
  const close = () => {
    stream?.close();
    stream = null;
    say('paused');
  };

  document.addEventListener('visibilitychange', () => {
    if (!every) return;
    if (document.hidden) {
      close();
    } else {
      if (page.dataset.stream !== 'events') refresh();
      open();
    }
  });

  // --- The page of events -----------------------------------------------------------------------------------------------

  const list = document.getElementById('events');
  const filter = document.getElementById('event-filter');

  const fits = (row) => {
    if (!filter) return true;
    const kind = filter.elements.kind.value;
    const text = filter.elements.like.value.trim().toLowerCase();
    return (!kind || row.dataset.kind === kind) && (!text || row.textContent.toLowerCase().includes(text));
  };

  const append = (event) => {
    if (!list) return;
    const row = document.getElementById('event-row').content.firstElementChild.cloneNode(true);
    row.dataset.kind = event.kind;
    row.querySelector('time').dateTime = event.at;
    row.querySelector('time').textContent = event.at.slice(11, 19);
    row.querySelector('.kind').textContent = event.word;
    row.querySelector('.subject').textContent = event.subject;
    row.querySelector('.what').textContent = event.what;
    row.hidden = !fits(row);
    document.getElementById('no-events')?.remove();
    list.prepend(row);
    while (list.children.length > 500) list.lastElementChild.remove();
    page.dataset.refreshed = String(Number(page.dataset.refreshed || 0) + 1);
  };

  filter?.addEventListener('input', () => {
    for (const row of list.children) row.hidden = !fits(row);
  });

  // --- Start ------------------------------------------------------------------------------------------------------------

  document.documentElement.dataset.script = 'on';
  setInterval(() => {
    if (!document.hidden) count();
  }, 1000);
  count();
  if (every) open();
})();
