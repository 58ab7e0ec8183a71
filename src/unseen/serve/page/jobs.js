// Streams that take a while to make: how far they are, and a way to stop.

import { ask, json } from "/api.js";

const $ = (id) => document.getElementById(id);

// The id of a stream that is made, or that a job makes; meanwhile the page shows how far it is.
export async function created(made) {
  if (!made.job) return made.id;
  $("job").dataset.id = made.job;
  $("job").hidden = false;
  try {
    while (made.status === "running") {
      $("job-text").textContent = `Creating a stream: ${made.stage}` + (made.total ? ` ${made.done.toLocaleString("en")} of ${made.total.toLocaleString("en")}` : "");
      if (made.total) Object.assign($("job-progress"), { max: made.total, value: made.done });
      else $("job-progress").removeAttribute("value");
      made = await json(`/v1/jobs/${made.job}?wait=1`);
    }
  } finally {
    $("job").hidden = true;
  }
  if (made.status !== "done") throw new Error(made.error?.message ?? "The stream was not created: cancelled.");
  return made.stream;
}

export const cancel = () => ask(`/v1/jobs/${$("job").dataset.id}`, { method: "DELETE" });
