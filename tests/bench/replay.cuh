/* How launches are timed: a graph of many, the median of nine replays. */
#ifndef NSV_TESTS_BENCH_REPLAY_CUH
#define NSV_TESTS_BENCH_REPLAY_CUH

#include "kernels/cuda/nanoserve_cuda.h"
#include "tests/ops/cuda/oracle.cuh"

#include <algorithm>
#include <vector>

using std::vector;

inline void fail(const nsv_err &err)
{
	printf("%s\n", err.text);
	exit(1);
}

/* Microseconds of one of the n launches that body(i, stream) makes. */
template <typename F> double time_us(F body, int n)
{
	cudaStream_t stream;
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	cudaEvent_t begin, end;
	CHECK(cudaStreamCreate(&stream));
	CHECK(cudaEventCreate(&begin));
	CHECK(cudaEventCreate(&end));
	CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	for (int i = 0; i < n; i++)
		body(i, stream);
	CHECK(cudaStreamEndCapture(stream, &graph));
	CHECK(cudaGraphInstantiate(&exec, graph, 0));
	vector<float> ms;
	for (int i = 0; i < 12; i++) {
		float x;
		CHECK(cudaEventRecord(begin, stream));
		CHECK(cudaGraphLaunch(exec, stream));
		CHECK(cudaEventRecord(end, stream));
		CHECK(cudaStreamSynchronize(stream));
		CHECK(cudaEventElapsedTime(&x, begin, end));
		if (i >= 3)
			ms.push_back(x);
	}
	std::sort(ms.begin(), ms.end());
	CHECK(cudaGraphExecDestroy(exec));
	CHECK(cudaGraphDestroy(graph));
	CHECK(cudaEventDestroy(begin));
	CHECK(cudaEventDestroy(end));
	CHECK(cudaStreamDestroy(stream));
	return ms[ms.size() / 2] * 1e3 / n;
}

#endif
