;; Matrix products for float32 arrays that lie in the memory of another module: Pyodide's, where NumPy has no BLAS.
;; Assembled by simd/assemble.mjs, called by evermind_web/backend/simd.py, tested in tests/browser/test_simd.py.
;;
;; Sizes are in elements, strides in bytes. Arrays are given as the addresses of NumPy's array objects (Python's `id`),
;; which spares the caller 3 µs an array; the address of the data is read from there, see `data`. Every element of a product goes through the same additions
;; in the same order, wherever it stands in the matrix: equal rows give equal results, and a repeat the same bits.
(module
  (import "env" "memory" (memory 0))

  ;; $DEPTH deep slices of A ($ROWS high) and B ($COLS wide) are copied so that the tile reads them in a straight line.
  (global $DEPTH i32 (i32.const 256))
  (global $ROWS i32 (i32.const 64))
  (global $COLS i32 (i32.const 512))
  ;; Where one tile and the copies lie: 128 + 64*256*4 + 256*512*4 bytes; see WORKSPACE in simd.py.
  (global $tile (mut i32) (i32.const 0))
  (global $packed_a (mut i32) (i32.const 0))
  (global $packed_b (mut i32) (i32.const 0))

  (func (export "use_workspace") (param $at i32)
    (global.set $tile (local.get $at))
    (global.set $packed_a (i32.add (local.get $at) (i32.const 128)))
    (global.set $packed_b (i32.add (global.get $packed_a) (i32.const 65536))))

  ;; Where the data of an array object lie: `char *data` follows the two words of every Python object. The caller
  ;; compares this with NumPy's own answer before it uses anything else.
  (func $data (export "data") (param $array i32) (result i32)
    (i32.load offset=8 (local.get $array)))

  (func $min (param $x i32) (param $y i32) (result i32)
    (select (local.get $x) (local.get $y) (i32.lt_s (local.get $x) (local.get $y))))

  ;; to[k*step .. +16] = four lanes of `from` at depth k, for k < depth. Lanes that do not exist repeat the first one;
  ;; what is computed of them is thrown away.
  (func $pack (param $from i32) (param $lane i32) (param $deep i32) (param $lanes i32) (param $depth i32)
              (param $to i32) (param $step i32)
    (local $p1 i32) (local $p2 i32) (local $p3 i32) (local $r0 v128) (local $r1 v128) (local $r2 v128) (local $r3 v128)
    (local $t0 v128) (local $t1 v128)
    (if (i32.lt_s (local.get $lanes) (i32.const 1)) (then (return)))
    (if (i32.and (i32.eq (local.get $lane) (i32.const 4)) (i32.gt_s (local.get $lanes) (i32.const 3)))
      (then  ;; lanes are neighbours: copy
        (loop $copy
          (v128.store (local.get $to) (v128.load (local.get $from)))
          (local.set $to (i32.add (local.get $to) (local.get $step)))
          (local.set $from (i32.add (local.get $from) (local.get $deep)))
          (br_if $copy (local.tee $depth (i32.sub (local.get $depth) (i32.const 1)))))
        (return)))
    (local.set $p1 (i32.add (local.get $from) (select (local.get $lane) (i32.const 0)
      (i32.gt_s (local.get $lanes) (i32.const 1)))))
    (local.set $p2 (i32.add (local.get $from) (select (i32.mul (local.get $lane) (i32.const 2)) (i32.const 0)
      (i32.gt_s (local.get $lanes) (i32.const 2)))))
    (local.set $p3 (i32.add (local.get $from) (select (i32.mul (local.get $lane) (i32.const 3)) (i32.const 0)
      (i32.gt_s (local.get $lanes) (i32.const 3)))))
    (if (i32.eq (local.get $deep) (i32.const 4))
      (then  ;; depths are neighbours: transpose four by four
        (block $done
          (loop $transpose
            (br_if $done (i32.lt_s (local.get $depth) (i32.const 4)))
            (local.set $r0 (v128.load (local.get $from)))
            (local.set $r1 (v128.load (local.get $p1)))
            (local.set $r2 (v128.load (local.get $p2)))
            (local.set $r3 (v128.load (local.get $p3)))
            (local.set $t0 (i8x16.shuffle 0 1 2 3 16 17 18 19 4 5 6 7 20 21 22 23 (local.get $r0) (local.get $r1)))
            (local.set $t1 (i8x16.shuffle 0 1 2 3 16 17 18 19 4 5 6 7 20 21 22 23 (local.get $r2) (local.get $r3)))
            (v128.store (local.get $to)
              (i8x16.shuffle 0 1 2 3 4 5 6 7 16 17 18 19 20 21 22 23 (local.get $t0) (local.get $t1)))
            (v128.store (local.tee $to (i32.add (local.get $to) (local.get $step)))
              (i8x16.shuffle 8 9 10 11 12 13 14 15 24 25 26 27 28 29 30 31 (local.get $t0) (local.get $t1)))
            (local.set $t0 (i8x16.shuffle 8 9 10 11 24 25 26 27 12 13 14 15 28 29 30 31 (local.get $r0) (local.get $r1)))
            (local.set $t1 (i8x16.shuffle 8 9 10 11 24 25 26 27 12 13 14 15 28 29 30 31 (local.get $r2) (local.get $r3)))
            (v128.store (local.tee $to (i32.add (local.get $to) (local.get $step)))
              (i8x16.shuffle 0 1 2 3 4 5 6 7 16 17 18 19 20 21 22 23 (local.get $t0) (local.get $t1)))
            (v128.store (local.tee $to (i32.add (local.get $to) (local.get $step)))
              (i8x16.shuffle 8 9 10 11 12 13 14 15 24 25 26 27 28 29 30 31 (local.get $t0) (local.get $t1)))
            (local.set $to (i32.add (local.get $to) (local.get $step)))
            (local.set $from (i32.add (local.get $from) (i32.const 16)))
            (local.set $p1 (i32.add (local.get $p1) (i32.const 16)))
            (local.set $p2 (i32.add (local.get $p2) (i32.const 16)))
            (local.set $p3 (i32.add (local.get $p3) (i32.const 16)))
            (local.set $depth (i32.sub (local.get $depth) (i32.const 4)))
            (br $transpose)))))
    (block $end
      (loop $one
        (br_if $end (i32.eqz (local.get $depth)))
        (f32.store (local.get $to) (f32.load (local.get $from)))
        (f32.store offset=4 (local.get $to) (f32.load (local.get $p1)))
        (f32.store offset=8 (local.get $to) (f32.load (local.get $p2)))
        (f32.store offset=12 (local.get $to) (f32.load (local.get $p3)))
        (local.set $to (i32.add (local.get $to) (local.get $step)))
        (local.set $from (i32.add (local.get $from) (local.get $deep)))
        (local.set $p1 (i32.add (local.get $p1) (local.get $deep)))
        (local.set $p2 (i32.add (local.get $p2) (local.get $deep)))
        (local.set $p3 (i32.add (local.get $p3) (local.get $deep)))
        (local.set $depth (i32.sub (local.get $depth) (i32.const 1)))
        (br $one))))

  ;; C (4,8) = or += A (4,depth) B (depth,8) of packed slices; a row of C is `row` bytes after the one before.
  (func $multiply_tile (param $depth i32) (param $a i32) (param $b i32) (param $c i32) (param $row i32) (param $add i32)
    (local $b0 v128) (local $b1 v128) (local $av v128)
    (local $c00 v128) (local $c01 v128) (local $c10 v128) (local $c11 v128)
    (local $c20 v128) (local $c21 v128) (local $c30 v128) (local $c31 v128)
    (local $q1 i32) (local $q2 i32) (local $q3 i32)
    (local.set $q1 (i32.add (local.get $c) (local.get $row)))
    (local.set $q2 (i32.add (local.get $q1) (local.get $row)))
    (local.set $q3 (i32.add (local.get $q2) (local.get $row)))
    (if (local.get $add)
      (then
        (local.set $c00 (v128.load (local.get $c)))  (local.set $c01 (v128.load offset=16 (local.get $c)))
        (local.set $c10 (v128.load (local.get $q1))) (local.set $c11 (v128.load offset=16 (local.get $q1)))
        (local.set $c20 (v128.load (local.get $q2))) (local.set $c21 (v128.load offset=16 (local.get $q2)))
        (local.set $c30 (v128.load (local.get $q3))) (local.set $c31 (v128.load offset=16 (local.get $q3)))))
    (block $tail
      (loop $four
        (br_if $tail (i32.lt_s (local.get $depth) (i32.const 4)))
        ;;#step 0
        ;;#step 1
        ;;#step 2
        ;;#step 3
        (local.set $a (i32.add (local.get $a) (i32.const 64)))
        (local.set $b (i32.add (local.get $b) (i32.const 128)))
        (local.set $depth (i32.sub (local.get $depth) (i32.const 4)))
        (br $four)))
    (block $end
      (loop $one
        (br_if $end (i32.eqz (local.get $depth)))
        ;;#step 0
        (local.set $a (i32.add (local.get $a) (i32.const 16)))
        (local.set $b (i32.add (local.get $b) (i32.const 32)))
        (local.set $depth (i32.sub (local.get $depth) (i32.const 1)))
        (br $one)))
    (v128.store (local.get $c) (local.get $c00))  (v128.store offset=16 (local.get $c) (local.get $c01))
    (v128.store (local.get $q1) (local.get $c10)) (v128.store offset=16 (local.get $q1) (local.get $c11))
    (v128.store (local.get $q2) (local.get $c20)) (v128.store offset=16 (local.get $q2) (local.get $c21))
    (v128.store (local.get $q3) (local.get $c30)) (v128.store offset=16 (local.get $q3) (local.get $c31)))

  ;; The same where C ends inside the tile: computed beside it, then copied.
  (func $multiply_edge (param $depth i32) (param $a i32) (param $b i32) (param $c i32) (param $row i32) (param $add i32)
                       (param $rows i32) (param $cols i32)
    (local $from i32) (local $to i32) (local $i i32) (local $j i32)
    (call $multiply_tile (local.get $depth) (local.get $a) (local.get $b) (global.get $tile) (i32.const 32) (i32.const 0))
    (loop $row_loop
      (local.set $from (i32.add (global.get $tile) (i32.mul (local.get $i) (i32.const 32))))
      (local.set $to (i32.add (local.get $c) (i32.mul (local.get $i) (local.get $row))))
      (local.set $j (local.get $cols))
      (loop $col_loop
        (f32.store (local.get $to) (f32.add (f32.load (local.get $from))
          (if (result f32) (local.get $add) (then (f32.load (local.get $to))) (else (f32.const 0)))))
        (local.set $from (i32.add (local.get $from) (i32.const 4)))
        (local.set $to (i32.add (local.get $to) (i32.const 4)))
        (br_if $col_loop (local.tee $j (i32.sub (local.get $j) (i32.const 1)))))
      (br_if $row_loop (i32.lt_s (local.tee $i (i32.add (local.get $i) (i32.const 1))) (local.get $rows)))))

  ;; All tiles of one slice: C (rows,cols) = or += packed A (rows,depth) packed B (depth,cols).
  (func $multiply_slice (param $rows i32) (param $cols i32) (param $depth i32) (param $c i32) (param $row i32)
                        (param $add i32)
    (local $i i32) (local $j i32) (local $a i32) (local $b i32)
    (local.set $b (global.get $packed_b))
    (loop $j_loop
      (local.set $i (i32.const 0))
      (local.set $a (global.get $packed_a))
      (loop $i_loop
        (if (i32.and (i32.le_s (i32.add (local.get $i) (i32.const 4)) (local.get $rows))
                     (i32.le_s (i32.add (local.get $j) (i32.const 8)) (local.get $cols)))
          (then (call $multiply_tile (local.get $depth) (local.get $a) (local.get $b)
            (i32.add (i32.add (local.get $c) (i32.mul (local.get $i) (local.get $row))) (i32.mul (local.get $j) (i32.const 4)))
            (local.get $row) (local.get $add)))
          (else (call $multiply_edge (local.get $depth) (local.get $a) (local.get $b)
            (i32.add (i32.add (local.get $c) (i32.mul (local.get $i) (local.get $row))) (i32.mul (local.get $j) (i32.const 4)))
            (local.get $row) (local.get $add)
            (call $min (i32.const 4) (i32.sub (local.get $rows) (local.get $i)))
            (call $min (i32.const 8) (i32.sub (local.get $cols) (local.get $j))))))
        (local.set $a (i32.add (local.get $a) (i32.mul (local.get $depth) (i32.const 16))))
        (br_if $i_loop (i32.lt_s (local.tee $i (i32.add (local.get $i) (i32.const 4))) (local.get $rows))))
      (local.set $b (i32.add (local.get $b) (i32.mul (local.get $depth) (i32.const 32))))
      (br_if $j_loop (i32.lt_s (local.tee $j (i32.add (local.get $j) (i32.const 8))) (local.get $cols)))))

  ;; Four lanes at a time, `apart` bytes from one panel to the next.
  (func $pack_panels (param $from i32) (param $lane i32) (param $deep i32) (param $lanes i32) (param $depth i32)
                     (param $to i32) (param $step i32)
    (local $apart i32)
    (local.set $apart (i32.mul (local.get $depth) (local.get $step)))
    (loop $panel
      (call $pack (local.get $from) (local.get $lane) (local.get $deep) (local.get $lanes) (local.get $depth)
        (local.get $to) (local.get $step))
      (if (i32.eq (local.get $step) (i32.const 32))
        (then (call $pack (i32.add (local.get $from) (i32.mul (local.get $lane) (i32.const 4))) (local.get $lane)
          (local.get $deep) (i32.sub (local.get $lanes) (i32.const 4)) (local.get $depth)
          (i32.add (local.get $to) (i32.const 16)) (local.get $step))))
      (local.set $to (i32.add (local.get $to) (local.get $apart)))
      (local.set $from (i32.add (local.get $from) (i32.mul (local.get $lane) (i32.shr_u (local.get $step) (i32.const 2)))))
      (br_if $panel (i32.gt_s
        (local.tee $lanes (i32.sub (local.get $lanes) (i32.shr_u (local.get $step) (i32.const 2)))) (i32.const 0)))))

  ;; C (M,N) = A (M,K) B (K,N), or += where `add` is not 0; a, b, c are array objects, M, N, K ≥ 1. A and B may have
  ;; any strides, rows of C are dense. C overlaps neither.
  (func (export "gemm") (param $M i32) (param $N i32) (param $K i32)
      (param $a i32) (param $a_row i32) (param $a_col i32) (param $b i32) (param $b_row i32) (param $b_col i32)
      (param $c i32) (param $c_row i32) (param $add i32)
    (local $i i32) (local $j i32) (local $k i32) (local $rows i32) (local $cols i32) (local $depth i32)
    (local.set $a (call $data (local.get $a)))
    (local.set $b (call $data (local.get $b)))
    (local.set $c (call $data (local.get $c)))
    (loop $j_loop
      (local.set $cols (call $min (global.get $COLS) (i32.sub (local.get $N) (local.get $j))))
      (local.set $k (i32.const 0))
      (loop $k_loop
        (local.set $depth (call $min (global.get $DEPTH) (i32.sub (local.get $K) (local.get $k))))
        (call $pack_panels
          (i32.add (i32.add (local.get $b) (i32.mul (local.get $j) (local.get $b_col))) (i32.mul (local.get $k) (local.get $b_row)))
          (local.get $b_col) (local.get $b_row) (local.get $cols) (local.get $depth) (global.get $packed_b) (i32.const 32))
        (local.set $i (i32.const 0))
        (loop $i_loop
          (local.set $rows (call $min (global.get $ROWS) (i32.sub (local.get $M) (local.get $i))))
          (call $pack_panels
            (i32.add (i32.add (local.get $a) (i32.mul (local.get $i) (local.get $a_row))) (i32.mul (local.get $k) (local.get $a_col)))
            (local.get $a_row) (local.get $a_col) (local.get $rows) (local.get $depth) (global.get $packed_a) (i32.const 16))
          (call $multiply_slice (local.get $rows) (local.get $cols) (local.get $depth)
            (i32.add (i32.add (local.get $c) (i32.mul (local.get $i) (local.get $c_row))) (i32.mul (local.get $j) (i32.const 4)))
            (local.get $c_row) (i32.or (local.get $add) (i32.gt_s (local.get $k) (i32.const 0))))
          (br_if $i_loop (i32.lt_s (local.tee $i (i32.add (local.get $i) (global.get $ROWS))) (local.get $M))))
        (br_if $k_loop (i32.lt_s (local.tee $k (i32.add (local.get $k) (global.get $DEPTH))) (local.get $K))))
      (br_if $j_loop (i32.lt_s (local.tee $j (i32.add (local.get $j) (global.get $COLS))) (local.get $N)))))
)
