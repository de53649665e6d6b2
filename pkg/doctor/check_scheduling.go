package doctor

func schedulingChecks() []Check { return nil }
