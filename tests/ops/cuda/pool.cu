/* Pools, copies and the write path on the device.
 *
 *     pool [seed]      prints "N passed, M failed"; exits 1 on any failure */
#include "tests/ops/cuda/oracle.cuh"

#include <math.h>
#include <random>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <vector>

using std::vector;

static int n_passed, n_failed;
static std::mt19937_64 rng;

static void verdict(bool ok, const char *what)
{
	n_passed += ok;
	n_failed += !ok;
	if (!ok)
		printf("FAILED %s\n", what);
}

static vector<uint8_t> random_bytes(size_t n)
{
	vector<uint8_t> x(n);
	for (uint8_t &b : x)
		b = (uint8_t)rng();
	return x;
}

/* Another mapping of the allocation, by its descriptor, outlives the first. */
static void adoption(nsv_cuda *cuda)
{
	nsv_err err;
	nsv_cuda_pool a, b;
	vector<uint8_t> in = random_bytes(5000000), out(in.size());
	verdict(nsv_cuda_pool_new(cuda, in.size(), &a, &err) == 0, "a pool");
	CHECK(cudaMemcpy(a.base, in.data(), in.size(), cudaMemcpyHostToDevice));
	int fd = dup(a.fd);
	nsv_cuda_pool_free(&a);
	verdict(a.fd == -1 && !a.base, "a freed pool holds nothing");
	verdict(nsv_cuda_pool_adopt(cuda, fd, in.size(), &b, &err) == 0, "an adopted pool");
	CHECK(cudaMemcpy(out.data(), b.base, out.size(), cudaMemcpyDeviceToHost));
	verdict(in == out, "the bytes of an adopted pool");
	nsv_cuda_pool_free(&b);
	verdict(nsv_cuda_pool_new(cuda, 0, &a, &err) == -EINVAL, "an empty pool is refused");
	verdict(nsv_cuda_pool_new(cuda, (size_t)1 << 50, &a, &err) < 0, "a pool beyond the device");
}

/* Pieces, neighbours among them, there and back; nothing else is touched. */
static void copies(nsv_cuda *cuda)
{
	nsv_err err;
	nsv_cuda_pool pool;
	size_t n = (size_t)4 << 20;
	vector<uint8_t> host = random_bytes(n), back(n, 7), want(n, 7);
	nsv_cuda_piece pieces[] = {{0, 4096, 8192}, {8192, 12288, 4096},
		{1 << 20, 2 << 20, 1 << 20}, {n - 512, 0, 512}};
	if (nsv_cuda_pool_new(cuda, n, &pool, &err) < 0)
		return verdict(false, err.text);
	verdict(nsv_cuda_host_register(cuda, host.data(), n, &err) == 0, "registering");
	verdict(nsv_cuda_copy(cuda, &pool, host.data(), n, pieces, 4, true, 0, &err) == 0, "in");
	verdict(nsv_cuda_copy(cuda, &pool, back.data(), n, pieces, 4, false, 0, &err) == 0, "out");
	CHECK(cudaDeviceSynchronize());
	for (const nsv_cuda_piece &p : pieces)
		memcpy(&want[p.host_off], &host[p.host_off], p.len);
	verdict(back == want, "the bytes of the pieces");
	pieces[3].device_off++;
	verdict(nsv_cuda_copy(cuda, &pool, host.data(), n, pieces, 4, true, 0, &err) == -EINVAL,
		"a piece beyond the pool is refused");
	verdict(nsv_cuda_host_unregister(cuda, host.data(), &err) == 0, "unregistering");
	nsv_cuda_pool_free(&pool);
}

struct append_case {
	nsv_attn_shape shape;
	uint32_t n_rot, n_row;
	bool neox, has_norm;
};

/* What a head becomes, in double. */
static vector<double> turned(
	const append_case &c, const float *x, const float *cs, const float *weight)
{
	uint32_t d = c.shape.head_dim;
	vector<double> y(x, x + d);
	double sum = 0.0;
	for (double v : y)
		sum += v * v;
	for (uint32_t i = 0; c.has_norm && i < d; i++)
		y[i] *= weight[i] / sqrt(sum / d + 1e-6);
	for (uint32_t i = 0; i < c.n_rot / 2; i++) {
		uint32_t a = c.neox ? i : 2 * i, b = c.neox ? i + c.n_rot / 2 : 2 * i + 1;
		double ya = y[a], yb = y[b];
		y[a] = ya * cs[2 * i] - yb * cs[2 * i + 1];
		y[b] = ya * cs[2 * i + 1] + yb * cs[2 * i];
	}
	return y;
}

static bool is_close(const vector<double> &want, const float *got)
{
	for (size_t i = 0; i < want.size(); i++)
		if (!(fabs(got[i] - want[i]) <= 1e-5 + 1e-4 * fabs(want[i])))
			return false;
	return true;
}

static void append(nsv_cuda *cuda, arena &mem, const append_case &c)
{
	const nsv_attn_shape &s = c.shape;
	std::normal_distribution<float> normal_of;
	uint32_t d = s.head_dim, width = (s.n_head + 2 * s.n_kv_head) * d;
	size_t pool = (size_t)s.n_block * s.block_size * s.n_kv_head * d;
	vector<float> rows(c.n_row * width), cs(c.n_row * c.n_rot), norm(2 * d), k(pool), v(pool);
	vector<int64_t> slots(c.n_row);
	for (vector<float> *x : {&rows, &cs, &norm})
		for (float &f : *x)
			f = normal_of(rng);
	for (uint32_t r = 0; r < c.n_row; r++)
		slots[r] = r % 5 == 4 ? -1 : (int64_t)(s.n_block * s.block_size - 1 - r * 3);
	mem.at = 0;
	float *d_rows = mem.take<float>(rows.size()), *d_cs = mem.take<float>(cs.size() + 1);
	float *d_norm = mem.take<float>(norm.size()), *d_k = mem.take<float>(pool);
	float *d_v = mem.take<float>(pool);
	int64_t *d_slots = mem.take<int64_t>(slots.size());
	CHECK(cudaMemcpy(d_rows, rows.data(), rows.size() * 4, cudaMemcpyHostToDevice));
	CHECK(cudaMemcpy(d_cs, cs.data(), cs.size() * 4, cudaMemcpyHostToDevice));
	CHECK(cudaMemcpy(d_norm, norm.data(), norm.size() * 4, cudaMemcpyHostToDevice));
	CHECK(cudaMemcpy(d_slots, slots.data(), slots.size() * 8, cudaMemcpyHostToDevice));
	CHECK(cudaMemset(d_k, 0xff, pool * 4));
	CHECK(cudaMemset(d_v, 0xff, pool * 4));
	nsv_cuda_append args = {d_rows, d_rows + s.n_head * d,
		d_rows + (s.n_head + s.n_kv_head) * d, width, d_cs, c.has_norm ? d_norm : nullptr,
		c.has_norm ? d_norm + d : nullptr, 1e-6f, c.n_rot, c.neox, d_slots, c.n_row};
	nsv_err err;
	verdict(nsv_cuda_kv_append(cuda, &s, &args, d_k, d_v, 0, &err) == 0, "append");
	vector<float> got(rows.size());
	CHECK(cudaMemcpy(got.data(), d_rows, rows.size() * 4, cudaMemcpyDeviceToHost));
	CHECK(cudaMemcpy(k.data(), d_k, pool * 4, cudaMemcpyDeviceToHost));
	CHECK(cudaMemcpy(v.data(), d_v, pool * 4, cudaMemcpyDeviceToHost));
	bool q_ok = true, k_ok = true, v_ok = true;
	size_t n_written = 0, n_number = 0;
	for (uint32_t r = 0; r < c.n_row; r++) {
		const float *row = &rows[r * width], *row_cs = cs.data() + r * c.n_rot;
		for (uint32_t h = 0; h < s.n_head; h++)
			q_ok = q_ok && is_close(turned(c, row + h * d, row_cs, norm.data()),
					       &got[r * width + h * d]);
		for (uint32_t h = 0; slots[r] >= 0 && h < s.n_kv_head; h++) {
			size_t at = (size_t)slots[r] / s.block_size * s.k.block_stride +
				    slots[r] % s.block_size * s.k.tok_stride + h * s.k.head_stride;
			const float *kv = row + (s.n_head + h) * d;
			k_ok = k_ok && is_close(turned(c, kv, row_cs, norm.data() + d), &k[at]);
			v_ok = v_ok && !memcmp(kv + s.n_kv_head * d, &v[at], d * 4);
			n_written += d;
		}
	}
	for (float x : k)
		n_number += !isnan(x);
	verdict(q_ok, "q turned in place");
	verdict(k_ok, "k in its slots");
	verdict(v_ok, "v in its slots");
	verdict(n_number == n_written, "other slots untouched");
}

static append_case make_case(uint32_t dim, bool neox, bool has_norm, uint32_t n_rot)
{
	append_case c = {};
	nsv_attn_shape &s = c.shape;
	s.n_head = 6;
	s.n_kv_head = 2;
	s.head_dim = dim;
	s.block_size = 16;
	s.n_block = 9;
	s.kv_dtype = NSV_F32;
	s.k = {16 * 2 * (int64_t)dim, dim, 16 * (int64_t)dim, 1};
	s.v = s.k;
	c.n_rot = n_rot;
	c.n_row = 17;
	c.neox = neox;
	c.has_norm = has_norm;
	return c;
}

int main(int argc, char **argv)
{
	uint64_t seed = argc > 1 ? strtoull(argv[1], nullptr, 0) : (uint64_t)time(nullptr);
	struct nsv_cuda_probe probe;
	nsv_cuda *cuda;
	nsv_err err;
	arena mem;
	if (nsv_cuda_probe(&probe, &err) < 0) {
		printf("skipped: %s\n", err.text);
		return 0;
	}
	printf("seed %llu\n", (unsigned long long)seed);
	rng.seed(seed);
	if (nsv_cuda_open(0, &cuda, &err) < 0) {
		printf("FAILED %s\n", err.text);
		return 1;
	}
	mem.open((size_t)64 << 20);
	adoption(cuda);
	copies(cuda);
	for (bool neox : {false, true})
		for (bool has_norm : {false, true})
			for (uint32_t dim : {64u, 80u, 256u})
				append(cuda, mem,
					make_case(dim, neox, has_norm, dim == 80 ? 32 : dim));
	append(cuda, mem, make_case(64, true, false, 0));
	nsv_cuda_close(cuda);
	printf("%d passed, %d failed\n", n_passed, n_failed);
	return n_failed != 0;
}
