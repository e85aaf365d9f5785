/* Cases of paged attention for the programs that judge it: a shape, sequences with scattered tables
 * in poisoned pools, the oracle's answer, and outputs of the kernels as bytes.
 *
 * A packed case has its K and V twice: as e4m3 with scales, which the kernels read, and as the
 * elements of q's type with the same values, which the oracle reads. */
#ifndef NSV_TESTS_OPS_CUDA_CASES_CUH
#define NSV_TESTS_OPS_CUDA_CASES_CUH

#include "tests/ops/cuda/oracle.cuh"

#include <algorithm>
#include <math.h>
#include <random>
#include <string.h>
#include <string>
#include <vector>

using std::vector;

inline int n_passed, n_failed;
inline struct arena mem;
inline std::mt19937_64 rng;

inline void verdict(bool ok, const std::string &what)
{
	n_passed += ok;
	n_failed += !ok;
	if (!ok)
		printf("FAILED %s\n", what.c_str());
}

inline uint32_t below(uint32_t n)
{
	return (uint32_t)(rng() % n);
}

template <size_t N> uint32_t pick(const uint32_t (&of)[N])
{
	return of[below(N)];
}

enum order { TOKENS_FIRST, HEADS_FIRST, DIMS_FIRST, N_ORDER };

/* (n_slot, n_kv_head, head_dim) | a head's slots of a block together | K dimension-major. */
inline nsv_kv_layout make_layout(const nsv_attn_shape &s, enum order order)
{
	int64_t bs = s.block_size, h = s.n_kv_head, d = s.head_dim;
	if (order == TOKENS_FIRST)
		return {bs * h * d, h * d, d, 1};
	if (order == HEADS_FIRST)
		return {bs * h * d, d, bs * d, 1};
	return {bs * h * d, 1, bs * d, bs};
}

struct test_case {
	nsv_attn_shape shape; /* of what the oracle reads */
	bool is_packed;
	vector<nsv_cuda_seq> seqs, prefixes;
	vector<int32_t> tables, needles;
	uint32_t table_stride, n_row, max_query, max_kv;
	float k_scale;
	uint64_t seed;
	/* device */
	nsv_cuda_seq *d_seqs;
	int32_t *d_tables, *d_needles;
	char *k, *v, *packed_k, *packed_v, *q, *out;
	double *truth, *scores;
	size_t elem, out_len;
};

inline std::string describe(const test_case &t)
{
	char text[256];
	const nsv_attn_shape &s = t.shape;
	snprintf(text, sizeof(text),
		"%u/%u/%u type %u%s block %u of %u window %u cap %.0f, %zu sequences, %u rows, %u "
		"keys, "
		"seed %llu",
		s.n_head, s.n_kv_head, s.head_dim, s.kv_dtype, t.is_packed ? " packed" : "",
		s.block_size, s.n_block, s.window, s.softcap, t.seqs.size(), t.max_query, t.max_kv,
		(unsigned long long)t.seed);
	return text;
}

inline void add_seq(test_case &t, uint32_t n_kv, uint32_t n_query)
{
	n_query = std::min(n_query, n_kv);
	t.seqs.push_back({(int32_t)t.n_row, (int32_t)n_query, (int32_t)(n_kv - n_query),
		(int32_t)t.seqs.size(), 0});
	t.n_row += n_query;
	t.max_query = std::max(t.max_query, n_query);
	t.max_kv = std::max(t.max_kv, n_kv);
}

/* Every block of a head's bytes, then the scales of the block: K alike V, pools of their own. */
inline nsv_attn_shape packed_shape(const test_case &t)
{
	nsv_attn_shape s = t.shape;
	s.k.block_stride += (int64_t)s.block_size * s.n_kv_head * (int64_t)sizeof(float);
	s.v.block_stride = s.k.block_stride;
	return s;
}

inline nsv_cuda_kv packed_kv(const test_case &t)
{
	return {NSV_CUDA_KV_E4M3, t.shape.k.block_stride, t.shape.v.block_stride};
}

/* Distinct blocks anywhere in the pool, the last among them; free entries point nowhere. */
inline void scatter(test_case &t, uint32_t spare)
{
	uint32_t bs = t.shape.block_size, n_used = 0;
	t.table_stride = (t.max_kv + bs - 1) / bs;
	for (const nsv_cuda_seq &s : t.seqs)
		n_used += (s.n_past + s.n_query + bs - 1) / bs;
	t.shape.n_block = n_used + spare;
	vector<int32_t> blocks(t.shape.n_block);
	for (size_t i = 0; i < blocks.size(); i++)
		blocks[i] = (int32_t)(blocks.size() - 1 - i);
	std::shuffle(blocks.begin(), blocks.begin() + n_used, rng);
	t.tables.assign(t.seqs.size() * t.table_stride, INT32_MAX);
	size_t next = 0;
	for (size_t i = 0; i < t.seqs.size(); i++)
		for (uint32_t b = 0; b * bs < (uint32_t)(t.seqs[i].n_past + t.seqs[i].n_query); b++)
			t.tables[i * t.table_stride + b] = blocks[next++];
}

template <typename T> T *upload(const vector<T> &x)
{
	T *p = mem.take<T>(x.size() + 1);
	CHECK(cudaMemcpy(p, x.data(), x.size() * sizeof(T), cudaMemcpyHostToDevice));
	return p;
}

template <typename E> void fill(test_case &t)
{
	view v = {t.shape, t.d_seqs, t.d_tables, t.table_stride};
	vector<nsv_cuda_seq> all = t.seqs;
	for (const nsv_cuda_seq &p : t.prefixes)
		all.push_back({0, 0, p.n_past, p.table, 0});
	view holders = {t.shape, upload(all), t.d_tables, t.table_stride};
	int64_t n_q = (int64_t)t.n_row * t.shape.n_head * t.shape.head_dim;
	fill_rows<<<256, 256>>>((E *)t.q, n_q, t.seed + 7, 1.0f);
	fill_pool<<<dim3(256, all.size()), 256>>>(holders, (E *)t.k, (E *)t.v, t.seed, t.k_scale);
	if (!t.needles.empty())
		plant_needles<<<t.seqs.size(), 128>>>(
			v, (E *)t.k, (E *)t.q, t.d_needles, t.seed, 1.0f);
	if (t.is_packed)
		pack_pool<<<dim3(64, all.size()), 256>>>(holders, packed_shape(t), packed_kv(t),
			(E *)t.k, (E *)t.v, (uint8_t *)t.packed_k, (uint8_t *)t.packed_v);
	for (size_t i = 0; i < t.seqs.size(); i++) {
		uint32_t rows = t.seqs[i].n_query, n_kv = rows + t.seqs[i].n_past;
		if (!rows)
			continue;
		oracle_scores<<<dim3((n_kv + 127) / 128, t.shape.n_head, rows), 128>>>(
			v, (const E *)t.q, (const E *)t.k, t.scores, t.max_kv, (int)i);
		oracle_rows<<<dim3(t.shape.n_head, rows), 256>>>(
			v, (const E *)t.v, t.scores, t.truth, t.max_kv, (int)i);
	}
	CHECK(cudaGetLastError());
}

inline void put_on_device(test_case &t)
{
	const nsv_attn_shape &s = t.shape;
	mem.at = 0;
	t.elem = s.kv_dtype == NSV_F32 ? 4 : 2;
	size_t pool = (size_t)s.n_block * s.block_size * s.n_kv_head * s.head_dim * t.elem;
	size_t rows = (size_t)t.n_row * s.n_head * s.head_dim;
	t.out_len = rows * t.elem;
	t.d_seqs = upload(t.seqs);
	t.d_tables = upload(t.tables);
	t.d_needles = upload(t.needles);
	t.k = mem.take<char>(pool);
	t.v = mem.take<char>(pool);
	t.q = mem.take<char>(t.out_len + 16);
	t.out = mem.take<char>(t.out_len + 16);
	t.truth = mem.take<double>(rows + 1);
	t.scores = mem.take<double>((size_t)t.max_query * s.n_head * t.max_kv + 1);
	if (t.is_packed) {
		size_t packed = (size_t)s.n_block * packed_shape(t).k.block_stride;
		t.packed_k = mem.take<char>(packed);
		t.packed_v = mem.take<char>(packed);
		CHECK(cudaMemset(t.packed_k, 0xff, packed));
		CHECK(cudaMemset(t.packed_v, 0xff, packed));
	}
	CHECK(cudaMemset(t.k, 0xff, pool));
	CHECK(cudaMemset(t.v, 0xff, pool));
	if (s.kv_dtype == NSV_F32)
		fill<float>(t);
	else if (s.kv_dtype == NSV_F16)
		fill<__half>(t);
	else
		fill<__nv_bfloat16>(t);
}

inline nsv_cuda_attn *make_attn(nsv_cuda *cuda, const test_case &t, const nsv_cuda_limits &limits)
{
	nsv_err err;
	nsv_cuda_attn *attn;
	nsv_attn_shape shape = t.is_packed ? packed_shape(t) : t.shape;
	nsv_cuda_kv kv = packed_kv(t);
	if (nsv_cuda_attn_new(cuda, &shape, t.is_packed ? &kv : nullptr, &limits, &attn, &err) <
		0) {
		printf("FAILED %s: %s\n", describe(t).c_str(), err.text);
		exit(1);
	}
	return attn;
}

inline void must(int r, const test_case &t, const nsv_err &err)
{
	if (r < 0) {
		printf("FAILED %s: %s\n", describe(t).c_str(), err.text);
		exit(1);
	}
}

inline void plan(
	nsv_cuda_attn *attn, const test_case &t, const nsv_cuda_batch &batch, cudaStream_t stream)
{
	nsv_err err;
	must(nsv_cuda_attn_plan(attn, &batch, stream, &err), t, err);
}

inline void run_layer(
	nsv_cuda_attn *attn, const test_case &t, const nsv_cuda_batch &batch, cudaStream_t stream)
{
	nsv_err err;
	const char *k = t.is_packed ? t.packed_k : t.k, *v = t.is_packed ? t.packed_v : t.v;
	must(nsv_cuda_attn_run(attn, &batch, k, v, t.q, t.out, stream, &err), t, err);
}

inline void run(
	nsv_cuda_attn *attn, const test_case &t, const nsv_cuda_batch &batch, cudaStream_t stream)
{
	plan(attn, t, batch, stream);
	run_layer(attn, t, batch, stream);
}

/* The rows that `seqs` (in place of the case's own) make with `prefixes`, poisoned before. */
inline vector<char> outputs(nsv_cuda *cuda, const test_case &t, const vector<nsv_cuda_seq> &seqs,
	uint32_t max_query, const vector<nsv_cuda_seq> &prefixes = {})
{
	size_t mark = mem.at;
	uint32_t n_prefix = (uint32_t)prefixes.size();
	nsv_cuda_batch batch = {upload(seqs), t.d_tables, (uint32_t)seqs.size(), t.table_stride,
		upload(prefixes), n_prefix};
	nsv_cuda_attn *attn = make_attn(cuda, t,
		{(uint32_t)seqs.size(), max_query, t.max_kv, n_prefix, n_prefix ? t.n_row : 0});
	CHECK(cudaMemset(t.out, 0xff, t.out_len));
	run(attn, t, batch, 0);
	vector<char> out(t.out_len);
	CHECK(cudaMemcpy(out.data(), t.out, t.out_len, cudaMemcpyDeviceToHost));
	nsv_cuda_attn_free(attn);
	mem.at = mark;
	return out;
}

inline double value(const test_case &t, const vector<char> &out, size_t i)
{
	if (t.shape.kv_dtype == NSV_F32) {
		float x;
		memcpy(&x, &out[i * 4], 4);
		return x;
	}
	uint16_t bits;
	memcpy(&bits, &out[i * 2], 2);
	if (t.shape.kv_dtype == NSV_F16)
		return __half2float(__half(__half_raw{bits}));
	uint32_t wide = (uint32_t)bits << 16;
	float x;
	memcpy(&x, &wide, 4);
	return x;
}

/* The worst row: its error over its bound. NaN is worse than all. */
inline double worst_row(const test_case &t, const vector<char> &out)
{
	size_t d = t.shape.head_dim, n = (size_t)t.n_row * t.shape.n_head;
	vector<double> truth(n * d);
	CHECK(cudaMemcpy(truth.data(), t.truth, n * d * 8, cudaMemcpyDeviceToHost));
	double bound = t.shape.kv_dtype == NSV_F16 ? 5e-4 : 4e-3, worst = 0.0;
	for (size_t r = 0; r < n; r++) {
		double diff = 0.0, norm = 0.0, over = 0.0;
		for (size_t i = r * d; i < (r + 1) * d; i++) {
			double e = value(t, out, i) - truth[i];
			diff += e * e;
			norm += truth[i] * truth[i];
			over = fmax(over, fabs(e) / (1e-5 + 1e-4 * fabs(truth[i])));
		}
		double x = t.shape.kv_dtype == NSV_F32 ? over : sqrt(diff / norm) / bound;
		if (isnan(diff))
			return INFINITY;
		worst = fmax(worst, x);
	}
	return worst;
}

inline void check_close(nsv_cuda *cuda, test_case &t, double *ret_worst)
{
	vector<char> out = outputs(cuda, t, t.seqs, t.max_query, t.prefixes);
	double x = worst_row(t, out);
	*ret_worst = fmax(*ret_worst, x);
	verdict(x <= 1.0, describe(t) + ": error is " + std::to_string(x) + " of its bound");
}

inline bool same_rows(
	const test_case &t, const vector<char> &a, const vector<char> &b, uint32_t row, uint32_t n)
{
	size_t len = (size_t)t.shape.n_head * t.shape.head_dim * t.elem;
	return memcmp(&a[row * len], &b[row * len], n * len) == 0;
}

/* A sequence's rows in two calls' worth, as chunks of a prefill. */
inline vector<char> outputs_in_two(nsv_cuda *cuda, const test_case &t, const nsv_cuda_seq &s)
{
	int32_t n = 1 + (int32_t)below((uint32_t)s.n_query - 1);
	return outputs(cuda, t,
		{{s.row0, n, s.n_past, s.table, 0},
			{s.row0 + n, s.n_query - n, s.n_past + n, s.table, 0}},
		(uint32_t)s.n_query);
}

/* A sequence alone, in two chunks, then rows one call each, against the batch. */
inline void check_bits(nsv_cuda *cuda, test_case &t)
{
	vector<char> all = outputs(cuda, t, t.seqs, t.max_query, t.prefixes);
	nsv_cuda_seq s = t.seqs[below((uint32_t)t.seqs.size())];
	if (s.n_query == 0)
		return;
	s.n_shared = 0;
	vector<char> alone = outputs(cuda, t, {s}, s.n_query);
	verdict(same_rows(t, all, alone, s.row0, s.n_query), describe(t) + ": other bits alone");
	bool same = true;
	if (s.n_query > 1) {
		vector<char> two = outputs_in_two(cuda, t, s);
		verdict(same_rows(t, all, two, s.row0, s.n_query),
			describe(t) + ": other bits in two");
	}
	for (int32_t i = 0; i < std::min(s.n_query, 3); i++) {
		int32_t row = i < 2 ? (i ? s.n_query - 1 : 0) : (int32_t)below(s.n_query);
		vector<char> one =
			outputs(cuda, t, {{s.row0 + row, 1, s.n_past + row, s.table, 0}}, 1);
		same = same && same_rows(t, all, one, s.row0 + row, 1);
	}
	verdict(same, describe(t) + ": other bits one row at a time");
}

inline enum nsv_cuda_path path_of(nsv_cuda *cuda, const test_case &t)
{
	nsv_cuda_attn *attn = make_attn(cuda, t, {1, 1, 64, 0, 0});
	enum nsv_cuda_path path = nsv_cuda_attn_path(attn);
	nsv_cuda_attn_free(attn);
	return path;
}

/* The bits of a packed case are those of the pool that the oracle reads, where one kernel serves
 * both. */
inline void check_packed(nsv_cuda *cuda, const test_case &t)
{
	test_case plain = t;
	plain.is_packed = false;
	if (path_of(cuda, t) != path_of(cuda, plain))
		return;
	verdict(outputs(cuda, t, t.seqs, t.max_query, t.prefixes) ==
			outputs(cuda, plain, t.seqs, t.max_query, t.prefixes),
		describe(t) + ": other bits than of the same values unpacked");
}

/* Captured over some lengths, replayed over others. */
inline void check_graph(nsv_cuda *cuda, test_case &t)
{
	vector<char> direct = outputs(cuda, t, t.seqs, t.max_query);
	vector<nsv_cuda_seq> other = t.seqs;
	for (nsv_cuda_seq &s : other) {
		s.n_past /= 2;
		s.n_query = s.n_query ? 1 : 0;
	}
	nsv_cuda_seq *seqs = upload(other);
	nsv_cuda_batch batch = {
		seqs, t.d_tables, (uint32_t)t.seqs.size(), t.table_stride, nullptr, 0};
	nsv_cuda_attn *attn = make_attn(cuda, t, {batch.n_seq, t.max_query, t.max_kv, 0, 0});
	cudaStream_t stream;
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	CHECK(cudaStreamCreate(&stream));
	CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	run(attn, t, batch, stream);
	CHECK(cudaStreamEndCapture(stream, &graph));
	CHECK(cudaGraphInstantiate(&exec, graph, 0));
	CHECK(cudaGraphLaunch(exec, stream));
	CHECK(cudaStreamSynchronize(stream));
	CHECK(cudaMemcpy(
		seqs, t.seqs.data(), t.seqs.size() * sizeof(t.seqs[0]), cudaMemcpyHostToDevice));
	CHECK(cudaMemset(t.out, 0xff, t.out_len));
	CHECK(cudaDeviceSynchronize());
	CHECK(cudaGraphLaunch(exec, stream));
	CHECK(cudaStreamSynchronize(stream));
	vector<char> out(t.out_len);
	CHECK(cudaMemcpy(out.data(), t.out, t.out_len, cudaMemcpyDeviceToHost));
	verdict(out == direct, describe(t) + ": a replay over other lengths gives other bits");
	CHECK(cudaGraphExecDestroy(exec));
	CHECK(cudaGraphDestroy(graph));
	CHECK(cudaStreamDestroy(stream));
	nsv_cuda_attn_free(attn);
}

inline void set_shape(test_case &t, uint32_t group, uint32_t n_kv_head, uint32_t dim,
	uint32_t block, uint32_t dtype, enum order order)
{
	nsv_attn_shape &s = t.shape;
	s.n_kv_head = n_kv_head;
	s.n_head = n_kv_head * group;
	s.head_dim = dim;
	s.block_size = block;
	s.kv_dtype = dtype;
	s.scale = 1.0f / sqrtf((float)dim);
	s.k = make_layout(s, order);
	s.v = make_layout(s, order == DIMS_FIRST ? HEADS_FIRST : order);
	t.k_scale = 1.0f;
	t.seed = rng();
}

#endif
