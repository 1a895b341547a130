#!/bin/sh
# Prepare the benchmark for a machine with a GPU and no network: the page with all that it loads goes to FOLDER
# (default .gpu/bench, about 20 MB), and what to evaluate to FOLDER/expressions.txt, the most wanted first. There, in
# one Chromium with WebGPU over Vulkan: serve FOLDER, open bench.html, wait for `window.ready`, evaluate each line.
set -eu
cd "$(dirname "$0")/.."
folder=${1:-.gpu/bench}
.venv/bin/python -m bench.site "$folder" >&2

cat > "$folder/expressions.txt" <<'EXPRESSIONS'
start({size:"L"})
bench({size:"S",batch:8,seqLen:64,steps:2000})
bench({size:"M",batch:8,seqLen:64,steps:1000})
bench({size:"L",batch:8,seqLen:64,steps:500})
bench({size:"L",batch:32,seqLen:128,steps:150})
bench({size:"L",batch:8,seqLen:64,steps:500,mode:"lora"})
bench({size:"XL",batch:8,seqLen:64,steps:40})
decode({size:"S",tokens:8000,context:10})
decode({size:"M",tokens:4000,context:10})
decode({size:"L",tokens:4000,context:10})
decode({size:"L",tokens:4000,context:10000})
decode({size:"L",tokens:4000,context:10,sampling:{top_k:40,top_p:0.9}})
decode({size:"S",tokens:2000,context:10,sequences:16})
decode({size:"L",tokens:1000,context:10,sequences:16})
kernels({size:"L",rows:[512,4096]})
peer({name:"tfjs",task:"products"})
peer({name:"jaxjs",task:"products"})
curves({size:"M"})
peer({name:"tfjs",size:"S",steps:20})
peer({name:"tfjs",size:"M",steps:20})
peer({name:"tfjs",size:"L",steps:20})
peer({name:"tfjs",size:"L",batch:32,seqLen:128,steps:10})
peer({name:"jaxjs",size:"S",steps:20})
peer({name:"jaxjs",size:"M",steps:20})
peer({name:"jaxjs",size:"L",steps:20})
peer({name:"jaxjs",size:"L",batch:32,seqLen:128,steps:10})
bench({size:"S",steps:30,backend:"numpy"})
bench({size:"M",steps:6,backend:"numpy"})
decode({size:"S",tokens:200,context:500,backend:"numpy"})
peer({name:"reference",size:"S",steps:5})
peer({name:"reference",size:"M",steps:3})
peer({name:"reference",task:"decode",size:"S",context:500,tokens:4})
EXPRESSIONS
cat "$folder/expressions.txt"
