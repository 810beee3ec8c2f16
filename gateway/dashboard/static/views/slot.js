/**
 * A panel's place for a chart that is made anew when its series change: another class, another reason.
 */

import { fill } from "../ui.js";

/** update(series, make, data): make(series) only when the series are others than before. */
export function slot(panel, holder = panel.body) {
  const actions = panel.element.querySelector(".actions");
  let chart = null;
  let made = null;
  return {
    update: (series, make, data) => {
      const key = JSON.stringify(series);
      if (key !== made) {
        chart?.destroy();
        chart = make(series);
        made = key;
        fill(holder, chart.element);
        fill(actions, chart.actions);
      }
      chart.update(data);
    },
    destroy: () => chart?.destroy(),
  };
}
