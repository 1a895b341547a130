/**
 * Kernels, pipelines and plans: all that is made once per kernel or shape, and the bind groups made once per buffers.
 * A plan is a list of dispatches with everything constant; see `backend/kernels/__init__.py`.
 */

import { failure, need } from "./bridge_faults.mjs";

/** @type {Record<string, GPUBufferBindingType>} */
const BINDING_TYPES = { read: "read-only-storage", read_write: "storage", uniform: "uniform" };

/**
 * @typedef {{ buffer: GPUBuffer, offset: number, nbytes: number, owns: boolean, entries: Set<Entry>, programs: Set<number> }} Window a buffer or part of one
 * @typedef {{ plan: Plan, key: string, groups: GPUBindGroup[], windows: Window[] }} Entry the bind groups of a plan for given buffers
 * @typedef {{ pipeline: GPUComputePipeline | null, error: Error | null }} Pipeline both null while it is compiled
 * @typedef {{ name: string, module: GPUShaderModule, layout: GPUBindGroupLayout, bindings: number }} Kernel
 * @typedef {{ kernel: Kernel, pipeline: Pipeline, operands: number[], grid: number[], uniform: GPUBufferBinding | null }} Step
 * @typedef {{ steps: Step[], scratch: number, groups: Map<string, Entry> }} Plan
 */

export class Plans {
  /** number of pipelines that are being compiled */
  compiling = 0;
  scratchBytes = 0;
  bindGroups = 0;
  /** raised when bind groups that were handed out are no longer right */
  generation = 0;
  /** @type {Map<string, Kernel>} */
  #kernels = new Map();
  /** @type {Map<string, GPUBindGroupLayout>} */
  #layouts = new Map();
  /** @type {Map<string, Pipeline>} */
  #pipelines = new Map();
  /** @type {Map<number, Plan>} */
  #plans = new Map();
  /** @type {GPUBuffer[]} */
  #scratch = [];

  /**
   * @param {GPUDevice} device
   * @param {(nbytes: number, label: string) => GPUBuffer} newBuffer
   * @param {() => void} onCompiled called whenever a pipeline is ready or has failed
   */
  constructor(device, newBuffer, onCompiled) {
    this.device = device;
    this.newBuffer = newBuffer;
    this.onCompiled = onCompiled;
  }

  get pipelines() {
    return this.#pipelines.size;
  }

  /**
   * @param {string} name
   * @param {string} code WGSL
   * @param {string} bindingsText JSON list of "read", "read_write", "uniform"
   */
  defineKernel(name, code, bindingsText) {
    /** @type {string[]} */
    const bindings = JSON.parse(bindingsText);
    let layout = this.#layouts.get(bindingsText);
    if (!layout) {
      const entries = bindings.map((kind, binding) => ({
        binding,
        visibility: GPUShaderStage.COMPUTE,
        buffer: { type: BINDING_TYPES[kind] },
      }));
      layout = this.device.createBindGroupLayout({ entries });
      this.#layouts.set(bindingsText, layout);
    }
    // Faults in the text come back from the pipeline, with lines; here they would be reported a second time.
    this.device.pushErrorScope("validation");
    const module = this.device.createShaderModule({ label: name, code });
    this.device.popErrorScope().catch(() => null);
    this.#kernels.set(name, { name, module, layout, bindings: bindings.length });
  }

  /**
   * @param {number} id
   * @param {string} text JSON, see `backend/kernels/__init__.py`
   */
  definePlan(id, text) {
    const spec = JSON.parse(text);
    /** @type {number[]} */
    const sizes = need(spec, "scratch");
    sizes.forEach((nbytes, index) => this.#growScratch(nbytes, index));
    /** @type {Step[]} */
    const steps = [];
    for (const item of need(spec, "dispatches")) {
      const kernel = this.#kernels.get(need(item, "kernel"));
      if (!kernel) throw failure("BackendError", `kernel ${item.kernel} was not defined`);
      const operands = need(item, "operands");
      const words = need(item, "uniform");
      const given = operands.length + (words.length ? 1 : 0);
      if (given !== kernel.bindings) {
        throw failure("BackendError", `kernel ${kernel.name} has ${kernel.bindings} bindings, its plan gives ${given}`);
      }
      const pipeline = this.#pipeline(kernel, need(item, "constants"));
      const uniform = words.length ? this.#uniform(words) : null;
      steps.push({ kernel, pipeline, operands, grid: need(item, "grid"), uniform });
    }
    this.#plans.set(id, { steps, scratch: sizes.length, groups: new Map() });
  }

  /** @param {number[]} words */
  #uniform(words) {
    const size = Math.ceil(words.length / 4) * 16;
    const usage = GPUBufferUsage.UNIFORM;
    const buffer = this.device.createBuffer({ label: "uniform", size, usage, mappedAtCreation: true });
    new Uint32Array(buffer.getMappedRange()).set(words);
    buffer.unmap();
    return { buffer, offset: 0, size };
  }

  /**
   * @param {Kernel} kernel
   * @param {Record<string, number>} constants
   * @returns {Pipeline}
   */
  #pipeline(kernel, constants) {
    const key = `${kernel.name} ${JSON.stringify(constants)}`;
    const known = this.#pipelines.get(key);
    if (known) return known;
    /** @type {Pipeline} */
    const entry = { pipeline: null, error: null };
    this.#pipelines.set(key, entry);
    this.compiling += 1;
    const layout = this.device.createPipelineLayout({ bindGroupLayouts: [kernel.layout] });
    const compute = { module: kernel.module, entryPoint: "main", constants };
    this.device
      .createComputePipelineAsync({ label: kernel.name, layout, compute })
      .then((pipeline) => { entry.pipeline = pipeline; })
      .catch(async (error) => { entry.error = await compileError(kernel, error); })
      .finally(() => {
        this.compiling -= 1;
        this.onCompiled();
      });
    return entry;
  }

  /**
   * Scratch buffers are shared by all plans. They grow when a plan is defined, never while commands are recorded.
   * @param {number} nbytes
   * @param {number} index
   */
  #growScratch(nbytes, index) {
    const old = this.#scratch[index];
    if (old && old.size >= nbytes) return;
    const grown = this.newBuffer(Math.max(nbytes, 4), `scratch ${index}`);
    this.#scratch[index] = grown;
    this.scratchBytes += grown.size - (old ? old.size : 0);
    if (!old) return;
    old.destroy();
    this.generation += 1;
    for (const plan of this.#plans.values()) {
      if (plan.scratch > index) for (const entry of plan.groups.values()) forget(entry);
    }
  }

  /**
   * The dispatches of a plan.
   * @param {number} id
   */
  plan(id) {
    const plan = this.#plans.get(id);
    if (!plan) throw failure("BackendError", `plan ${id} was not defined`);
    return plan;
  }

  /**
   * The bind groups of a plan for these buffers.
   * @param {Plan} plan
   * @param {Int32Array} ids
   * @param {(id: number) => Window} windowOf
   */
  groups(plan, ids, windowOf) {
    const key = ids.join();
    const known = plan.groups.get(key);
    if (known) return known.groups;
    const windows = Array.from(ids, windowOf);
    const entry = { plan, key, windows, groups: plan.steps.map((step) => this.#bind(step, windows)) };
    plan.groups.set(key, entry);
    for (const window of windows) window.entries.add(entry);
    return entry.groups;
  }

  /**
   * @param {Step} step
   * @param {Window[]} windows
   */
  #bind({ kernel, operands, uniform }, windows) {
    /** @type {GPUBufferBinding[]} */
    const bound = operands.map((operand) => {
      if (operand < 0) return { buffer: this.#scratch[-1 - operand] };
      const { buffer, offset, nbytes } = windows[operand];
      return { buffer, offset, size: nbytes };
    });
    if (uniform) bound.push(uniform);
    this.bindGroups += 1;
    const entries = bound.map((resource, binding) => ({ binding, resource }));
    return this.device.createBindGroup({ label: kernel.name, layout: kernel.layout, entries });
  }
}

/** @param {Entry} entry bind groups that are no longer right */
export function forget(entry) {
  entry.plan.groups.delete(entry.key);
  for (const window of entry.windows) window.entries.delete(entry);
}

/**
 * The compiler's own words, with the line of the kernel that they are about.
 * @param {Kernel} kernel
 * @param {Error} error
 */
async function compileError({ name, module }, error) {
  const info = await module.getCompilationInfo().catch(() => null);
  const first = info?.messages.find((message) => message.type === "error");
  const text = first ? `, line ${first.lineNum}: ${first.message}` : `: ${error.message}`;
  return failure("BackendError", `kernel ${name}${text}`);
}
