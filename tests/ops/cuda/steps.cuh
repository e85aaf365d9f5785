/* Many steps of one case while another stream takes multiprocessors and memory away for random
 * times: every output is the same, whatever the order in which blocks of threads and their warps
 * get on. */
#ifndef NSV_TESTS_OPS_CUDA_STEPS_CUH
#define NSV_TESTS_OPS_CUDA_STEPS_CUH

#include "tests/ops/cuda/cases.cuh"

constexpr int STEPS_A_REPLAY = 100;
constexpr size_t DISTURB_BYTES = (size_t)256 << 20; /* some times the second-level cache */

/* Sets *ret_differs where x is not what y is. */
static __global__ void compare(const uint32_t *x, const uint32_t *y, size_t n, int *ret_differs)
{
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
		i += (size_t)gridDim.x * blockDim.x)
		if (x[i] != y[i])
			*ret_differs = 1;
}

/* Keeps blocks of threads waiting for a multiprocessor, each for another time; half of those that
 * take one read memory meanwhile. */
static __global__ void disturb(
	const uint32_t *memory, uint64_t seed, uint32_t max_cycles, uint32_t *ret_sum)
{
	extern __shared__ char taken[];
	uint64_t random = mix(seed + blockIdx.x);
	uint32_t wait = (uint32_t)(random % max_cycles), sum = 0;
	size_t at = random % (DISTURB_BYTES / 4);
	for (int64_t begin = clock64(); clock64() - begin < wait;) {
		taken[threadIdx.x] = 0;
		if (random >> 63)
			sum += memory[(at += 32 * blockDim.x + threadIdx.x) % (DISTURB_BYTES / 4)];
	}
	if (sum == 1)
		*ret_sum = sum;
}

/* A graph of steps, each compared with `first`. */
inline cudaGraphExec_t capture_steps(nsv_cuda_attn *attn, const test_case &t,
	const nsv_cuda_batch &batch, const char *first, int *differs, cudaStream_t stream)
{
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	for (int i = 0; i < STEPS_A_REPLAY; i++) {
		if (i % 10 == 0)
			plan(attn, t, batch, stream);
		run_layer(attn, t, batch, stream);
		compare<<<8, 256, 0, stream>>>(
			(uint32_t *)t.out, (const uint32_t *)first, t.out_len / 4, differs);
		CHECK(cudaMemsetAsync(t.out, 0xff, t.out_len, stream));
	}
	CHECK(cudaStreamEndCapture(stream, &graph));
	CHECK(cudaGraphInstantiate(&exec, graph, 0));
	CHECK(cudaGraphDestroy(graph));
	return exec;
}

/* n steps of a case, prefixes among them where it has any. */
inline void check_steps(nsv_cuda *cuda, const test_case &t, int n)
{
	cudaStream_t stream, other;
	size_t mark = mem.at;
	uint32_t n_prefix = (uint32_t)t.prefixes.size();
	char *first = upload(outputs(cuda, t, t.seqs, t.max_query, t.prefixes));
	int differs = 0, *d_differs = upload(vector<int>{0});
	uint32_t *memory = mem.take<uint32_t>(DISTURB_BYTES / 4), *sum = mem.take<uint32_t>(1);
	nsv_cuda_batch batch = {t.d_seqs, t.d_tables, (uint32_t)t.seqs.size(), t.table_stride,
		upload(t.prefixes), n_prefix};
	nsv_cuda_attn *attn = make_attn(
		cuda, t, {batch.n_seq, t.max_query, t.max_kv, n_prefix, n_prefix ? t.n_row : 0});
	CHECK(cudaMemset(t.out, 0xff, t.out_len));
	CHECK(cudaDeviceSynchronize());
	CHECK(cudaStreamCreate(&stream));
	CHECK(cudaStreamCreate(&other));
	cudaGraphExec_t exec = capture_steps(attn, t, batch, first, d_differs, stream);
	for (int i = 0; i < n; i += STEPS_A_REPLAY) {
		disturb<<<1 + below(260), 128, 1024 * (1 + below(40)), other>>>(
			memory, rng(), 1000 + below(200000), sum);
		CHECK(cudaGraphLaunch(exec, stream));
		if (i % (100 * STEPS_A_REPLAY) == 0)
			CHECK(cudaDeviceSynchronize());
	}
	CHECK(cudaDeviceSynchronize());
	CHECK(cudaMemcpy(&differs, d_differs, sizeof(differs), cudaMemcpyDeviceToHost));
	verdict(!differs, describe(t) + ": one of many steps gave other bits");
	printf("%d steps of %s\n", n, describe(t).c_str());
	CHECK(cudaGraphExecDestroy(exec));
	CHECK(cudaStreamDestroy(stream));
	CHECK(cudaStreamDestroy(other));
	nsv_cuda_attn_free(attn);
	mem.at = mark;
}

#endif
