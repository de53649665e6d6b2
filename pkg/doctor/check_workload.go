package doctor

func workloadChecks() []Check { return nil }
