/* The bound of a spin, learnt from the last waits. */
#include "client/spin.h"

#include <sched.h>

static int n_usable_cpu(void)
{
	cpu_set_t set;

	/* More CPUs than the set holds are surely more than one. */
	if (sched_getaffinity(0, sizeof(set), &set) < 0)
		return 2;
	return CPU_COUNT(&set);
}

void nsv_spin_init(struct nsv_spin *spin, int32_t spin_us)
{
	bool alone = n_usable_cpu() == 1;

	*spin = (struct nsv_spin){
		.adaptive = spin_us < 0 && !alone,
		.fixed_ns = spin_us < 0 || alone ? 0 : (int64_t)spin_us * 1000,
		.average_ns = NSV_SPIN_MAX_NS,
	};
}

int64_t nsv_spin_bound_ns(const struct nsv_spin *spin)
{
	if (!spin->adaptive)
		return spin->fixed_ns;
	if (spin->average_ns > NSV_SPIN_MAX_NS)
		return 0;
	int64_t twice = 2 * spin->average_ns;
	return twice < NSV_SPIN_MAX_NS ? twice : NSV_SPIN_MAX_NS;
}

void nsv_spin_learn(struct nsv_spin *spin, int64_t waited_ns)
{
	int64_t most = 2 * NSV_SPIN_MAX_NS;

	spin->average_ns = (3 * spin->average_ns + (waited_ns < most ? waited_ns : most)) / 4;
}
