/**
 * Programs: records that are decoded once, into what the encoder needs and nothing else, and replayed from then on.
 * A program is forgotten with the first of its buffers.
 */

import { failure } from "./bridge_faults.mjs";
import { walk } from "./bridge_records.mjs";

/** @typedef {import("./bridge_encoder.mjs").Part} Part */
/** @typedef {import("./bridge_encoder.mjs").Dispatches} Dispatches */
/** @typedef {import("./bridge_plans.mjs").Plan} Plan */
/** @typedef {import("./bridge_plans.mjs").Plans} Plans */
/** @typedef {import("./bridge_plans.mjs").Window} Window */
/** @typedef {{ words: Int32Array, parts: Part[] | null, plans: Set<Plan>, generation: number }} Program parts null: not decoded yet */

export class Programs {
  /** @type {Map<number, Program>} */
  #programs = new Map();

  /**
   * @param {Plans} plans
   * @param {(id: number) => Window} windowOf
   */
  constructor(plans, windowOf) {
    this.plans = plans;
    this.windowOf = windowOf;
  }

  /**
   * Store records. They are decoded at their first replay, when all pipelines are compiled.
   * @param {number} id
   * @param {Int32Array} words not used by anybody else
   */
  define(id, words) {
    this.#programs.set(id, { words, parts: null, plans: new Set(), generation: 0 });
    /** @param {number} buffer */
    const note = (buffer) => {
      const window = this.windowOf(buffer);
      window.programs.add(id);
      return window;
    };
    walk(words, note, { run: (_, ids) => ids.forEach(note), clear: () => {}, copy: () => {} }, null);
  }

  /**
   * What a program does, and the plans that it runs.
   * @param {number} id
   * @returns {{ parts: Part[], plans: Set<Plan> }}
   */
  get(id) {
    const program = this.#programs.get(id);
    if (!program) throw failure("BackendError", `program ${id} was dropped or never made`);
    if (!program.parts || program.generation !== this.plans.generation) {
      program.parts = this.#decode(program);
      program.generation = this.plans.generation;
    }
    return { parts: program.parts, plans: program.plans };
  }

  /** @param {number} id */
  drop(id) {
    this.#programs.delete(id);
  }

  /**
   * @param {Program} program
   * @returns {Part[]}
   */
  #decode({ words, plans }) {
    /** @type {Part[]} */
    const parts = [];
    /** @type {Dispatches | null} */
    let pass = null;
    const sink = {
      /** @param {number} number @param {Int32Array} ids */
      run: (number, ids) => {
        const plan = this.plans.plan(number);
        plans.add(plan);
        const groups = this.plans.groups(plan, ids, this.windowOf);
        if (!pass) parts.push({ dispatches: (pass = { pipelines: [], groups: [], grids: [] }) });
        for (let i = 0; i < groups.length; i += 1) {
          const { pipeline, grid } = plan.steps[i];
          if (!pipeline.pipeline) throw pipeline.error;
          pass.pipelines.push(pipeline.pipeline);
          pass.groups.push(groups[i]);
          pass.grids.push(grid[0], grid[1], grid[2]);
        }
      },
      /** @param {Window} window */
      clear: (window) => {
        pass = null;
        parts.push({ clear: window });
      },
      /** @type {import("./bridge_records.mjs").Sink["copy"]} */
      copy: (...copy) => {
        pass = null;
        parts.push({ copy });
      },
    };
    walk(words, this.windowOf, sink, null);
    return parts;
  }
}
