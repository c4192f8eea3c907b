// Which actors have died, and when: marks in the charts and a list.

import { byId, element } from "./elements.js";

const LONGEST_LIST = 8;

export class Deaths {
  marks = []; // {t, label}, as charts want them

  #counts = new Map(); // restarts by actor
  #uptime = 0;

  /** Finds what is new in a view that came at this time in seconds. */
  look(view, now) {
    if (view.uptime_s < this.#uptime) {
      this.#counts.clear();
      this.#add(now - view.uptime_s, "the daemon was started again");
    }
    this.#uptime = view.uptime_s;
    for (const actor of view.actors) {
      const count = Object.values(actor.restarts).reduce((a, b) => a + b, 0);
      if (count > (this.#counts.get(actor.name) ?? 0)) {
        this.#add(now - actor.last_death_s_ago, actor.last_death);
      }
      this.#counts.set(actor.name, count);
    }
  }

  #add(t, label) {
    this.marks.push({ t, label });
    this.marks = this.marks.slice(-LONGEST_LIST);
    const time = new Date(performance.timeOrigin + t * 1000).toLocaleTimeString();
    const item = element("li", "", label);
    item.prepend(element("time", "", time), " ");
    byId("deaths").prepend(item);
    byId("deaths").children[LONGEST_LIST]?.remove();
  }
}
